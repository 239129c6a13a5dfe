-- Expire: how long a workflow stays after its end; counted from now where it has ended.
-- keys    lapses flow
-- removes first lapses
-- arg     ttl     int   microseconds; negative: for ever
-- route   of id
-- return  ok | missing
local state = redis.call('HGET', flow .. id, 'st')
if not state then return 'missing' end
local ended = state == 'succeeded' or state == 'failed' or state == 'cancelled'
redis.call('HSET', flow .. id, 'ttl', ttl)
if ended and ttl >= 0 then redis.call('ZADD', lapses, now + ttl, id)
elseif ended then redis.call('ZREM', lapses, id) end
return 'ok'
