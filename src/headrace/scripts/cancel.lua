-- Cancel: a waiting job ends as cancelled; a running one is asked to stop.
-- include finish
-- clock   now
-- key     scheduled  zset  scheduled
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
  redis.call('HSET', job .. id, 'cancel', 1)
  redis.call('SADD', cancels .. f[4], id)
  redis.call('PUBLISH', mail .. f[4], id)
  return 'asked'
end
if state == 'ready' then redis.call('ZREM', ready .. f[2], id)
elseif state == 'scheduled' then redis.call('ZREM', scheduled, id)
elseif state == 'parked' then redis.call('ZREM', parked .. f[3], id)
else return state end
finish(id, 'cancelled', '{"type":"Cancelled","message":"cancelled before it started"}', keep)
finish_all()
return 'cancelled'
