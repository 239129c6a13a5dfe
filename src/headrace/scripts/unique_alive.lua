-- Unique alive: taking a free name, and whether a job keeps others from its name.
-- keys    job unique
-- Whether the name was free. It has an end of its own only where its rule says how long it is held.
local function set_name(name, id, rule)
  if rule == true or rule[1] ~= 'within' and rule[1] ~= 'window' then
    return redis.call('SET', unique .. name, id, 'NX')
  end
  local length = math.ceil(rule[3] / 1000)
  if redis.call('SET', unique .. name, id, 'NX', 'PX', length) then return true end
  -- More is left only where the server's clock was set back: of a window that another one follows, two.
  if redis.call('PTTL', unique .. name) > length * (rule[2] == 'trailing' and 2 or 1) then
    redis.call('PEXPIRE', unique .. name, length)
  end
  return false
end

-- What is known of a job that has the name and may start or runs. One whose time to start is over does not count.
local function keeps_name(name, id)
  local f = redis.pcall('HMGET', job .. id, 'unique', 'st', 'expires', 'token')
  local state = not f.err and f[1] == name and f[2]
  if not state or state == 'succeeded' or state == 'failed' or state == 'cancelled' or state == 'quarantined' then
    return false
  end
  return (state == 'running' or f[4] or not f[3] or tonumber(f[3]) > now) and {id = id, state = state, started = f[4]}
end
