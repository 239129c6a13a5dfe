-- Recount: a counter of the shard becomes what was counted, if it is still what it was before.
-- keys    totals
-- arg     field   text  bytes or blocked
-- arg     seen    int   what it was
-- arg     right   int   what was counted
-- route   desk
-- return  1, or 0: it has changed since, and stays
if tonumber(redis.call('HGET', totals, field) or 0) ~= seen then return 0 end
if right > 0 then redis.call('HSET', totals, field, right) else redis.call('HDEL', totals, field) end
return 1
