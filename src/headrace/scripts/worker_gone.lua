-- Worker gone: what only it could run ends as cancelled; its death is an event, and news for an hour.
-- include finish telling
-- keys    ready deaths
-- Seconds for which a death is news, and how many are kept.
local NEWS, MOST_DEATHS = 3600, 20

-- A broadcast to it has not begun.
local function leave_behind(owner, limit, ttl)
  local popped = limit > 0 and redis.call('ZPOPMIN', ready .. '@' .. owner, limit) or {}
  for n = 1, #popped, 2 do
    -- Scripts do not roll back: an unreadable record must not take the jobs of its worker out of every structure.
    pcall(finish, popped[n], 'cancelled', '{"type":"Cancelled","message":"its worker left before it started"}', ttl)
  end
end

local function worker_lost(owner, place, why)
  local fields = {'worker', owner, 'place', place, 'why', why}
  if not telling().at_home('worker_lost', fields) then return end
  redis.call('XADD', deaths, 'MAXLEN', MOST_DEATHS, '*', 'kind', 'worker_lost', unpack(fields))
  redis.call('EXPIRE', deaths, NEWS)
end
