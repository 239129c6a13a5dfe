-- Schedule read: definitions of schedules and what is next for them.
-- keys    schedules plan=schedule history=ticks
-- arg     names      packed  of schedules; none: a page of all, by name
-- arg     after      text    the page begins behind this name
-- arg     limit      int     most schedules of a page, at most 500
-- arg     ticks      int     how many of the last ticks of each are told
-- route   home
-- return  {now, how many there are, {name, {field, value, ...}, {tick, ...}, ...}}
local found, size = names, redis.call('ZCARD', schedules)
if #names == 0 then
  found = redis.call('ZRANGE', schedules, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, limit)
end
local rows = {}
for n, name in ipairs(found) do
  rows[3 * n - 2], rows[3 * n - 1] = name, redis.call('HGETALL', plan .. name)
  rows[3 * n] = ticks > 0 and redis.call('LRANGE', history .. name, -ticks, -1) or {}
end
return {now, size, rows}
