-- Retire: an incarnation that holds nothing any more leaves.
-- A broadcast to it that has not begun ends as cancelled.
-- include finish left_behind telling worker_lost
-- keys    owners
-- key     self     hash  owner:<owner>
-- key     known    hash  tasks:<owner>
-- key     claims   zset  claims:<owner>
-- key     cancels  set   cancels:<owner>
-- key     slots    hash  slots:<owner>
-- key     replaced set   replaced:<owner>
-- arg     owner    text
-- arg     ttl      int   microseconds that the cancelled stay
-- arg     why      text  what ended it; empty: it leaves in order
-- route   desk
-- return  ok | busy
local busy = redis.call('EXISTS', claims) == 1
if not busy then leave_behind(owner, 500, ttl) end
return function()
  if busy or redis.call('EXISTS', ready .. '@' .. owner) == 1 then return 'busy' end
  if redis.call('ZREM', owners, owner) == 1 then
    local place = redis.call('HGET', self, 'place') or ''
    if why == '' then
      telling().at_home('worker_stopped', {'worker', owner, 'place', place})
    else
      worker_lost(owner, place, why)
    end
  end
  redis.call('UNLINK', self, known, cancels, slots, replaced)
  return 'ok'
end
