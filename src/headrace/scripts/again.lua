-- Again: a job that waited elsewhere lines up. Included, never run alone; the caller takes it out of its old structure.
-- include line
-- clock   now
-- derive  job  hash  job:<id>
-- An id without a record is forgotten; a record of another type must not hold up the others.
local function line_up_again(id)
  local f = redis.pcall('HMGET', job .. id, 'queue', 'priority', 'state')
  if f.err or not (f[1] or f[3]) then return end
  redis.call('HSET', job .. id, 'state', 'ready')
  line_up(id, f[1] or 'default', now - (tonumber(f[2]) or 0) * 600000000)
end
