-- Stats_look: stored events by their ids.
-- keys    event=stat-event
-- arg     ids    packed  at most 1000
-- route   home
-- return  {body or false, ...}
local found = {}
for n, id in ipairs(ids) do found[n] = redis.call('GET', event .. id) end
return found
