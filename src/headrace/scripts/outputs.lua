-- Outputs: what nodes returned, for those that take it.
-- keys    job
-- arg     ids     packed  at most 500
-- arg     most    int     bytes; what does not fit is left out, but never the first
-- route   each ids
-- return  {{task, state, facts, role, gather, parents, result}, ...}; for the first ones of ids
local found, size = {}, 0
for n, id in ipairs(ids) do
  local f = redis.call('HMGET', job .. id, 'task', 'st', 'facts', 'role', 'gather', 'parents', 'result')
  size = size + #(f[7] or '') + #(f[6] or '')
  if n > 1 and size > most then break end
  if f[4] ~= 'join' and f[4] ~= 'pass' then f[6] = '' end
  found[n] = f
end
return found
