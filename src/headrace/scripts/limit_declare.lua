-- Limit declare: the store learns which limits code has, and which tasks and queues; the newest code counts.
-- include declare
-- keys    timers
-- removes first timers
-- arg     owner   text    the incarnation whose code it is; empty: a program that is not a worker
-- arg     tasks   packed  {task, ...} that it knows
-- arg     limits  packed  {{name, {field, value, ...}}, ...} that its code declares
-- arg     rows    packed  {task or queue, its limits, ...}, see limited_values
-- route   home
-- return  of how many limits, tasks and queues newer code says otherwise, on a live worker; -1: the incarnation is gone
if owner ~= '' and not redis.call('ZSCORE', owners, owner) then return -1 end
local kept = declare(owner, limits, tasks, rows)
if owner ~= '' and redis.call('EXISTS', limited) == 1 then redis.call('HSET', about .. owner, 'limits', 1) end
return kept
