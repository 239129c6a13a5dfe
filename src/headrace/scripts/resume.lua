-- Resume: jobs of a paused queue are claimed again, and a worker is woken for them.
-- include wake telling
-- keys    paused resumes pauses ready
-- arg     queue    text
-- route   all
-- return  1 if it was paused
local was = redis.call('SREM', paused, queue)
redis.call('ZREM', resumes, queue)
redis.call('HDEL', pauses, queue, '~' .. queue)
if redis.call('EXISTS', ready .. queue) == 1 then wake_up(queue) end
-- Those that know of the pause do not sleep on the queue.
if was == 1 then
  hurry()
  telling().at_home('queue_resumed', {'queue', queue})
end
return was
