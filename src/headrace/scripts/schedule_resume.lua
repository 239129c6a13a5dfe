-- Schedule resume: ticks of a paused schedule make jobs again, from the next one on.
-- include wake
-- keys    plan=schedule:<name> ticking
-- route   home
-- return  resumed | was (it was not paused) | missing
if redis.call('EXISTS', plan) == 0 then return 'missing' end
if redis.call('HDEL', plan, 'paused', 'paused_at') == 0 then return 'was' end
redis.call('HDEL', plan, 'failing')
if redis.call('HEXISTS', plan, 'ended') == 0 then
  redis.call('HSET', plan, 'ticks', '', 'known', now)
  redis.call('HDEL', plan, 'final')
end
redis.call('ZADD', ticking, now, name)
-- Every dispatcher asks what is due next.
hurry()
return 'resumed'
