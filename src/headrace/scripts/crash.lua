-- Crash: a start ended without an outcome; the job runs again, fails (at most once) or is quarantined.
-- include finish again
-- The worker that ran it knows the budget of its task where the record names none: its 'owner' key says so.
local function budget_of(task, owner)
  local known = redis.call('HMGET', owner, 'budget:' .. (task or ''), 'budget:')
  return tonumber(known[1] or known[2]) or 3
end

local function crash(id, evidence, score, ttl, owner)
  local f = redis.call('HMGET', job .. id, 'crashes', 'budget', 'once', 'cancel', 'queue', 'priority', 'task')
  local crashes = (tonumber(f[1]) or 0) + 1
  redis.call('HSET', job .. id, 'crashes', crashes, 'more', 1, 'error', evidence)
  if f[3] then
    finish(id, 'failed', evidence, ttl)
  elseif f[4] then
    finish(id, 'cancelled', evidence, ttl)
  elseif crashes >= (tonumber(f[2]) or budget_of(f[7], owner)) then
    finish(id, 'quarantined', evidence, ttl)
  else
    redis.call('HDEL', job .. id, 'owner')
    ready_again(id, f[5], f[6], score)
  end
end
