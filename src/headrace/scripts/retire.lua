-- Retire: an incarnation that holds nothing any more leaves. A broadcast to it that has not begun ends as cancelled.
-- include finish telling worker_gone
-- keys    self=owner:<owner> known=tasks:<owner> claims:<owner> cancels:<owner> slots:<owner> replaced:<owner> owners
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
    if why == '' then telling().at_home('worker_stopped', {'worker', owner, 'place', place})
    else worker_lost(owner, place, why) end
  end
  redis.call('UNLINK', self, known, cancels, slots, replaced)
  return 'ok'
end
