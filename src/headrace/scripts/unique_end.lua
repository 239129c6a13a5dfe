-- Unique end: a unique job that ends lets go of its name. Included, never run alone.
-- include again
-- lazy    uniques name_ended
-- derive  job     hash    job:<id>
-- derive  unique  string  unique:<name>
local function name_ended(id, state)
  local f = redis.pcall('HMGET', job .. id, 'unique', 'hold')
  if f.err or not f[1] or redis.call('GET', unique .. f[1]) ~= id then return end
  -- A time that is not over keeps the name of a job that has done its work.
  if f[2] == 'window' or f[2] == 'within' and state == 'succeeded' then return end
  redis.call('UNLINK', unique .. f[1])
end
