-- Crash: a start ended without an outcome; the job runs again, fails (at most once) or is quarantined. Included.
-- include finish
-- include line
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
    redis.call('HSET', job .. id, 'state', 'ready')
    redis.call('HDEL', job .. id, 'owner')
    if score == 0 then score = now - (tonumber(f[6]) or 0) * 600000000 end
    line_up(id, f[5] or 'default', score)
  end
end
