-- Unique holder: who has a name. Included, never run alone.
-- See unique_end.lua for the value of a name. It has an end of its own only where a time says how long it is held.
-- include unique_end unique_alive
-- lazy    naming retake
-- Who has the name: a job that has not ended, or any while a time is not over; what is known of it; who follows it.
-- nil: it is free.
local function holder_of(name)
  local value = redis.call('GET', unique .. name)
  if not value then return nil end
  local id, follower = string.sub(value, 1, 21), string.sub(value, 23)
  local f = alive(name, id)
  if f then return id, f, follower ~= '' and follower end
  if follower ~= '' then
    hand_on(name, follower)
    return holder_of(name)
  end
  return redis.call('PTTL', unique .. name) > 0 and id or nil
end

-- The name is held: takes it anyway from what is not alive, or returns who has it.
local function take_over(name, id, rule)
  local holder, f, follower = holder_of(name)
  if not holder then
    redis.call('UNLINK', unique .. name)
    set_name(name, id, rule)
  end
  if holder ~= id then return holder, f, follower end
end

-- A job that has ended runs again: it needs its name, where it would hold that until its end. Returns who else has it.
local function retake(id)
  local f = redis.call('HMGET', job .. id, 'unique', 'hold')
  if not f[1] or f[2] or redis.call('SET', unique .. f[1], id, 'NX') then return nil end
  return (take_over(f[1], id, true))
end
