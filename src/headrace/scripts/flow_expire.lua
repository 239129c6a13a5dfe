-- Expire: how long a workflow stays after its end; counted from now where it has ended.
-- clock   now
-- key     lapses  zset  lapses
-- derive  flow    hash  flow:<flow>
-- arg     id      text
-- arg     ttl     int   microseconds; negative: for ever
-- return  ok | missing
local state = redis.call('HGET', flow .. id, 'state')
if not state then return 'missing' end
redis.call('ZREM', lapses, id)
redis.call('HSET', flow .. id, 'ttl', ttl)
if ttl >= 0 and (state == 'succeeded' or state == 'failed' or state == 'cancelled') then redis.call('ZADD', lapses, now + ttl, id) end
return 'ok'
