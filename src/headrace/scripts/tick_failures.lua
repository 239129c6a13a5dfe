-- Tick failures: pauses a schedule whose jobs failed too often, one after the other. Included, never run alone.
-- include tick telling
-- keys    plan=schedule
-- Whether the last jobs of a schedule failed, one after the other, so often (most) that it is paused now.
local function failed_too_often(name, most)
  local f = redis.call('HMGET', plan .. name, 'last_job', 'failing')
  if not f[1] then return false end
  local state, failing = redis.pcall('HGET', job .. f[1], 'st'), tonumber(f[2] or 0)
  if state == 'failed' or state == 'quarantined' then failing = failing + 1
  elseif state and not ENDED[state] then return false
  else failing = 0 end
  redis.call('HDEL', plan .. name, 'last_job')
  redis.call('HSET', plan .. name, 'failing', failing)
  if failing < most then return false end
  redis.call('HSET', plan .. name, 'paused', failing .. ' jobs failed, one after the other', 'paused_at', now)
  telling().happened('schedule_paused', {'schedule', name, 'why', failing .. ' jobs failed, one after the other'})
  return true
end
