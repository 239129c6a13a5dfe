-- Resume due: pauses end whose time has come, soonest first, as if a person had resumed their queues.
-- include wake telling
-- keys    paused resumes pauses ready
-- arg     limit    int   most queues, at most 1000
-- route   desk
-- return  {resumed, now, next end of a pause or 0}
local due = redis.call('ZRANGE', resumes, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
if #due > 0 then
  redis.call('ZREM', resumes, unpack(due))
  redis.call('SREM', paused, unpack(due))
  for _, queue in ipairs(due) do
    redis.call('HDEL', pauses, queue, '~' .. queue)
    if redis.call('EXISTS', ready .. queue) == 1 then wake_up(queue) end
    telling().at_home('queue_resumed', {'queue', queue, 'why', 'the time of its pause is over'})
  end
  hurry()
end
return {#due, now, redis.call('ZRANGE', resumes, 0, 0, 'WITHSCORES')[2] or 0}
