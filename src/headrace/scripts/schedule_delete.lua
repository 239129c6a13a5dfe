-- Schedule delete: a schedule and its history are gone; jobs that it made stay.
-- key     plan       hash  schedule:<name>
-- key     history    list  ticks:<name>
-- keys    ticking schedules
-- arg     name       text
-- route   home
-- return  1 if there was one
redis.call('ZREM', ticking, name)
redis.call('ZREM', schedules, name)
return redis.call('UNLINK', plan, history) > 0 and 1 or 0
