-- Schedule delete: a schedule and its history are gone; jobs that it made stay.
-- keys    plan=schedule:<name> history=ticks:<name> ticking schedules
-- route   home
-- return  1 if there was one
redis.call('ZREM', ticking, name)
redis.call('ZREM', schedules, name)
return redis.call('UNLINK', plan, history) > 0 and 1 or 0
