-- Unique holder: who has a name; its end frees it, or hands it to the one that follows. A name holds '<id>' of its job,
-- or '<id> <id>' where another one waits for its end, and ends by itself only under a rule with a time.
-- include again unique_alive
-- lazy    naming retake name_ended
-- keys    unique sums=totals
local function hand_on(name, id)
  local f = redis.pcall('HMGET', job .. id, 'st', 'queue', 'priority', 'unique')
  redis.call('HINCRBY', sums, 'blocked', -1)
  if f.err or f[1] ~= 'blocked' or f[4] ~= name then return redis.call('UNLINK', unique .. name) end
  redis.call('SET', unique .. name, id)
  ready_again(id, f[2], f[3], 0)
end

local function name_ended(id, state)
  local f = redis.pcall('HMGET', job .. id, 'unique', 'hold')
  local value = not f.err and f[1] and redis.call('GET', unique .. f[1]) or ''
  local holder, follower = string.sub(value, 1, 21), string.sub(value, 23)
  if follower == id then
    redis.call('HINCRBY', sums, 'blocked', -1)
    redis.call('SET', unique .. f[1], holder)
  elseif holder == id and follower ~= '' then
    hand_on(f[1], follower)
  -- A time that is not over keeps the name of a job that has done its work, and a window that of any.
  elseif holder == id and f[2] ~= 'window' and not (f[2] == 'within' and state == 'succeeded') then
    redis.call('UNLINK', unique .. f[1])
  end
end

-- Who has the name: a job that has not ended, or any in its time; what is known of it; who follows. nil: it is free.
local function holder_of(name)
  local value = redis.call('GET', unique .. name)
  if not value then return nil end
  local id, follower = string.sub(value, 1, 21), string.sub(value, 23)
  local f = keeps_name(name, id)
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
