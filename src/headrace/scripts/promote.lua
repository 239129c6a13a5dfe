-- Promote: scheduled jobs whose time has come become ready.
-- include line
-- clock   now
-- key     scheduled  zset  scheduled
-- derive  job        hash  job:<id>
-- arg     limit      int   most jobs, at most 1000
-- return  {promoted, now, next due time or 0}
local due = redis.call('ZRANGE', scheduled, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
for _, id in ipairs(due) do
  local f = redis.call('HMGET', job .. id, 'queue', 'priority')
  if f[1] then
    redis.call('HSET', job .. id, 'state', 'ready')
    line_up(id, f[1], now - (tonumber(f[2]) or 0) * 600000000)
  end
end
if #due > 0 then redis.call('ZREM', scheduled, unpack(due)) end
line_up_all()
return {#due, now, redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0}
