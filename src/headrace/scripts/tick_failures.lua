-- Tick failures: pauses a schedule whose jobs failed too often, one after the other. Included, never run alone.
-- include tick
-- include telling
-- clock   now
-- derive  plan  hash  schedule:<name>
-- derive  job   hash  job:<id>
-- Whether the last jobs of a schedule failed, one after the other, so often that it is paused now.
local function failed_too_often(name)
  local f = redis.call('HMGET', plan .. name, 'pause_after', 'last_job', 'failing')
  if not f[1] or not f[2] then return false end
  local state, failing = redis.pcall('HGET', job .. f[2], 'state'), tonumber(f[3] or 0)
  if state == 'failed' or state == 'quarantined' then failing = failing + 1
  elseif state and not ENDED[state] then return false
  else failing = 0 end
  redis.call('HDEL', plan .. name, 'last_job')
  redis.call('HSET', plan .. name, 'failing', failing)
  if failing < tonumber(f[1]) then return false end
  redis.call('HSET', plan .. name, 'paused', failing .. ' jobs failed, one after the other', 'paused_at', now)
  telling().happened('schedule_paused', {'schedule', name, 'why', failing .. ' jobs failed, one after the other'})
  return true
end
