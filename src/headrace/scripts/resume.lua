-- Resume: jobs of a paused queue are claimed again, and somebody is woken for them.
-- include line
-- key     paused  set   paused
-- arg     queue   text
-- return  1 if it was paused
local was = redis.call('SREM', paused, queue)
if redis.call('EXISTS', ready .. queue) == 1 then wake_up(queue) end
return was
