-- Unique holder: who has a name. Included, never run alone.
-- See unique_end.lua for the value of a name. It has an end of its own only where a time says how long it is held.
-- include unique_end
-- lazy    holders holder_of take_over retake
-- clock   now
-- derive  job        hash    job:<id>
-- derive  unique     string  unique:<name>
local ENDED = {succeeded = true, failed = true, cancelled = true, quarantined = true}

-- What is known of a job that has the name and may start or runs. One whose time to start is over does not count.
local function alive(name, id)
  local f = redis.pcall('HMGET', job .. id, 'unique', 'state', 'expires', 'token')
  if f.err or f[1] ~= name or ENDED[f[2] or 'cancelled'] then return false end
  return (f[2] == 'running' or f[4] or not f[3] or tonumber(f[3]) > now) and {id = id, state = f[2], started = f[4]}
end

-- Who has the name: a job that has not ended, or any while a time is not over; what is known of it; who follows it. nil: it is free.
local function holder_of(name)
  local value = redis.call('GET', unique .. name)
  if not value then return nil end
  local id, follower = string.sub(value, 1, 22), string.sub(value, 24)
  local f = alive(name, id)
  if f then return id, f, follower ~= '' and follower end
  if follower ~= '' then
    uniques().hand_on(name, follower)
    return holder_of(name)
  end
  return redis.call('PTTL', unique .. name) > 0 and id or nil
end

-- The name is held: takes it all the same from what is not alive, or returns who has it.
local function take_over(name, id, ttl)
  local holder, f, follower = holder_of(name)
  if not holder then redis.call('SET', unique .. name, id, unpack(ttl)) end
  if holder ~= id then return holder, f, follower end
end

-- A job that has ended runs again: it needs its name, where it would hold that until its end. Returns who else has it.
local function retake(id)
  local f = redis.call('HMGET', job .. id, 'unique', 'hold')
  if not f[1] or f[2] or redis.call('SET', unique .. f[1], id, 'NX') then return nil end
  return (take_over(f[1], id, {}))
end
