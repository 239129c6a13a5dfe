-- Tell: an incarnation says of itself, for people, what changes from moment to moment.
-- key     owners  zset  owners
-- key     self    hash  owner:<owner>
-- arg     owner   text
-- arg     roster  text  its runners and what they run
-- return  ok | gone
if not redis.call('ZSCORE', owners, owner) then return 'gone' end
-- A removal comes first: once a script has written, a server whose memory is full lets it write on.
redis.call('HDEL', self, 'roster')
redis.call('HSET', self, 'roster', roster)
return 'ok'
