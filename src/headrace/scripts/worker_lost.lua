-- Worker lost: a worker died, which is an event, and news where no program looks through all events.
-- Included, never run alone.
-- include telling
-- keys    deaths
-- Seconds for which a death is news, and how many are kept.
local NEWS, MOST_DEATHS = 3600, 20

local function worker_lost(owner, place, why)
  local fields = {'worker', owner, 'place', place, 'why', why}
  if not telling().at_home('worker_lost', fields) then return end
  redis.call('XADD', deaths, 'MAXLEN', MOST_DEATHS, '*', 'kind', 'worker_lost', unpack(fields))
  redis.call('EXPIRE', deaths, NEWS)
end
