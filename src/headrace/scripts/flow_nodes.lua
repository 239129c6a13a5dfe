-- Nodes: everything stored of some nodes of a workflow.
-- keys    job
-- arg     ids     packed  at most 500
-- route   each ids
-- return  {{field, value, ...}, ...}; no fields: not stored
local found = {}
for n, id in ipairs(ids) do found[n] = redis.call('HGETALL', job .. id) end
return found
