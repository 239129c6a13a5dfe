-- Schedule pause: no tick of a schedule makes a job any more, and none of them is missed.
-- keys    plan=schedule:<name> ticking
-- arg     note    text  why, for people
-- route   home
-- return  paused | was (it was paused before; the note replaces the one of then) | missing
redis.call('ZREM', ticking, name)
if redis.call('EXISTS', plan) == 0 then return 'missing' end
local was = redis.call('HEXISTS', plan, 'paused') == 1
redis.call('HSET', plan, 'paused', note)
if not was then redis.call('HSET', plan, 'paused_at', now) end
return was and 'was' or 'paused'
