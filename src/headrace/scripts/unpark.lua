-- Unpark: parked jobs of a task become ready, since a worker that knows it has come.
-- include line
-- clock   now
-- key     parking  set   parking
-- key     parked   zset  parked:<task>
-- derive  job      hash  job:<id>
-- arg     task     text
-- arg     limit    int   most jobs, at most 1000
-- return  jobs moved
local ids = redis.call('ZRANGE', parked, 0, limit - 1)
for _, id in ipairs(ids) do
  local f = redis.call('HMGET', job .. id, 'queue', 'priority')
  if f[1] then
    redis.call('HSET', job .. id, 'state', 'ready')
    line_up(id, f[1], now - (tonumber(f[2]) or 0) * 600000000)
  end
end
if #ids > 0 then redis.call('ZREM', parked, unpack(ids)) end
if redis.call('EXISTS', parked) == 0 then redis.call('SREM', parking, task) end
line_up_all()
return #ids
