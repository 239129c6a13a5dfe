-- Unique start: a unique job that held its name until its start lets go of it.
-- A job that has started never takes the name again.
-- include ids
-- lazy    naming name_started
-- keys    job unique
local function name_started(id)
  local f = redis.pcall('HMGET', job .. id, 'unique', 'hold')
  if not f.err and f[1] and f[2] == 'start' and redis.call('GET', unique .. f[1]) == id then
    redis.call('UNLINK', unique .. f[1])
  end
end
