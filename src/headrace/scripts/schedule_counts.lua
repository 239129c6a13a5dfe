-- Schedule counts: what became of the ticks of schedules, a page of them by name.
-- keys    schedules plan=schedule
-- arg     limit      int   most schedules, at most 500
-- route   home
-- return  {name, {jobs made, ticks that were missed, skipped, and that had run before}, ...}; counts as texts, or nil
local found = {}
for _, name in ipairs(redis.call('ZRANGE', schedules, '-', '+', 'BYLEX', 'LIMIT', 0, limit)) do
  found[#found + 1] = name
  found[#found + 1] = redis.call('HMGET', plan .. name, 'runs', 'ticks_missed', 'ticks_skipped', 'ticks_twice')
end
return found
