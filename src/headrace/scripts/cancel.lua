-- Cancel: a waiting job ends as cancelled; a running one is asked to stop.
-- include finish
-- clock   now
-- key     scheduled  zset  scheduled
-- key     parking    set   parking
-- derive  ready      zset  ready:<queue>
-- derive  parked     zset  parked:<task>
-- derive  cancels    set   cancels:<owner>
-- channel mail       mail:<owner>
-- arg     id         text
-- arg     keep       int   microseconds that the cancelled job stays
-- return  cancelled | asked | missing | the final state it is in already
local f = redis.call('HMGET', job .. id, 'state', 'queue', 'task', 'owner')
local state = f[1]
if not state then return 'missing' end
if state == 'running' then
  -- A removal comes first: once a script has written, a server whose memory is full lets it write on.
  redis.call('SREM', cancels .. f[4], '')
  redis.call('HSET', job .. id, 'cancel', 1)
  redis.call('SADD', cancels .. f[4], id)
  redis.call('PUBLISH', mail .. f[4], id)
  return 'asked'
end
if state == 'ready' then redis.call('ZREM', ready .. (f[2] or 'default'), id)
elseif state == 'scheduled' then redis.call('ZREM', scheduled, id)
elseif state == 'parked' then
  local task = f[3] or ''
  redis.call('ZREM', parked .. task, id)
  if redis.call('EXISTS', parked .. task) == 0 then redis.call('SREM', parking, task) end
else return state end
finish(id, 'cancelled', '{"type":"Cancelled","message":"cancelled before it started"}', keep)
finish_all()
return 'cancelled'
