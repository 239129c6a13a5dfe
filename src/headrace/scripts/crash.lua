-- Crash: a start ended without an outcome; the job runs again, fails (at most once) or is quarantined. Included.
-- include finish
-- include again
-- derive  job     hash  job:<id>
local function crash(id, evidence, score, keep)
  local f = redis.call('HMGET', job .. id, 'crashes', 'budget', 'once', 'cancel', 'queue', 'priority')
  local crashes = (tonumber(f[1]) or 0) + 1
  redis.call('HSET', job .. id, 'crashes', crashes, 'more', 1, 'error', evidence)
  if f[3] then
    finish(id, 'failed', evidence, keep)
  elseif f[4] then
    finish(id, 'cancelled', evidence, keep)
  elseif crashes >= (tonumber(f[2]) or 3) then
    finish(id, 'quarantined', evidence, keep)
  else
    redis.call('HDEL', job .. id, 'owner')
    ready_again(id, f[5], f[6], score)
  end
end
