-- Register: a dispatcher incarnation begins its lease, before its first claim.
-- clock   now
-- key     owners  zset    owners
-- key     self    hash    owner:<owner>
-- arg     owner   text
-- arg     lease   int     microseconds
-- arg     facts   packed  {field, value, ...} that people see
-- return  ok
-- A removal comes first: once a script has written, a server whose memory is full lets it write on.
redis.call('HDEL', self, '')
redis.call('ZADD', owners, now + lease, owner)
redis.call('HSET', self, 'since', now, unpack(facts))
return 'ok'
