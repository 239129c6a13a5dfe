-- Reserve: a running node that grows gets numbers for what it adds; a later attempt gets the same ones if they suffice.
-- keys    claims:<owner> flow job
-- arg     id      text  the node
-- arg     flow_id text  its workflow
-- arg     token   int
-- arg     amount  int
-- route   desk
-- return  {first number} | {0}: a newer start, or the workflow is gone or cancelled | {-1}: it has no numbers left
local held = redis.call('ZSCORE', claims, id)
local f = redis.call('HMGET', flow .. flow_id, 'st', 'cancel')
if not held or tonumber(held) ~= token or not f[1] or f[2] then return {0} end
local known = redis.call('HMGET', job .. id, 'reserved', 'reserve')
if known[1] and tonumber(known[2]) >= amount then return {tonumber(known[1])} end
-- The ids of a workflow's nodes hold no larger number.
if tonumber(redis.call('HGET', flow .. flow_id, 'size') or 0) + amount > 1048575 then return {-1} end
local first = redis.call('HINCRBY', flow .. flow_id, 'size', amount) - amount + 1
redis.call('HSET', job .. id, 'reserved', first, 'reserve', amount)
return {first}
