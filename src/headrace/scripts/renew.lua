-- Renew: an incarnation keeps everything that it holds, however much, for another lease.
-- clock   now
-- key     owners     zset    owners
-- key     self       hash    owner:<owner>
-- key     cancels    set     cancels:<owner>
-- key     scheduled  zset    scheduled
-- key     parking    set     parking
-- key     expires    zset    expires
-- key     totals     hash    totals
-- arg     owner      text
-- arg     lease      int     microseconds
-- arg     facts      packed  {field, value, ...} that changed
-- return  {ok, now, next due or 0, nearest end of a lease, its owner, {cancelled ids}, {parked tasks}, next retention end or 0, kept bytes, kept} | {gone}
local ends = redis.call('ZSCORE', owners, owner)
if not ends or tonumber(ends) <= now then return {'gone'} end
-- A removal comes first: once a script has written, a server whose memory is full lets it write on.
redis.call('HDEL', self, '')
redis.call('ZADD', owners, now + lease, owner)
if #facts > 0 then redis.call('HSET', self, unpack(facts)) end
local nearest = redis.call('ZRANGE', owners, 0, 0, 'WITHSCORES')
local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0
local over = redis.call('ZRANGE', expires, 0, 0, 'WITHSCORES')[2] or 0
return {'ok', now, due, nearest[2], nearest[1], redis.call('SRANDMEMBER', cancels, 500), redis.call('SRANDMEMBER', parking, 500),
  over, tonumber(redis.call('HGET', totals, 'bytes') or 0), redis.call('ZCARD', expires)}
