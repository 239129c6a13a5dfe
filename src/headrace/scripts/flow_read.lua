-- Read: the records of some workflows.
-- keys    lapses flow broken job
-- arg     ids     packed  at most 500
-- route   each ids
-- return  {{id, end of retention or 0, facts of the first broken node or '', {field, value, ...} or empty}, ...}
local found = {}
for n, id in ipairs(ids) do
  local fields = redis.call('HGETALL', flow .. id)
  local first = #fields > 0 and redis.call('ZRANGE', broken .. id, 0, 0)[1]
  found[n] = {id, #fields > 0 and redis.call('ZSCORE', lapses, id) or 0,
    first and redis.call('HGET', job .. first, 'facts') or '', fields}
end
return found
