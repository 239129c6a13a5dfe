-- Unique end: a unique job that ends lets go of its name, or hands it to the one that follows.
-- Included, never run alone.
-- The value of a name is the job that holds it or, where another one waits for its end, both: '<id> <id>'.
-- include again
-- lazy    naming name_ended
-- keys    unique sums=totals
-- The one that follows holds the name, and lines up.
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
