-- Limit change: an operator puts numbers, a weight or a pause over a limit or one of its values, or takes them away.
-- include look_anew declare
-- keys    numbers=limit:<limit> overrides:<limit> timers
-- removes first timers
-- arg     value      text    '*': all of it
-- arg     declared   packed  {field, value, ...} of the caller's code, or {}, for a store that does not know it
-- arg     parts      packed  {part, microseconds that it counts or 0, {field, value or '', ...}, ...}
-- arg     gone       packed  {part, ...} that are taken away
-- route   home
-- return  unknown | shared: it has no values | {part that there was, ...}
if redis.call('EXISTS', numbers) == 0 then
  if #declared == 0 then return 'unknown' end
  declare_limit(limit, declared)
  limiting().look_anew(limit)
end
if value ~= '*' and redis.call('HEXISTS', numbers, 'by') == 0 then return 'shared' end
local had = {}
for part in pairs(limiting().overrule(limit, value, parts, gone)) do had[#had + 1] = part end
limiting().look_at_limit(limit, value)
return had
