-- Pause: no job of a queue is claimed any more; enqueuing goes on, running jobs finish.
-- End and reason of an earlier pause do not count any more.
-- include wake telling
-- keys    paused resumes pauses
-- removes first paused
-- arg     queue     text
-- arg     duration  int   microseconds after which it ends by itself; 0: it does not
-- arg     note      text  why, for people, or empty
-- route   all
-- return  1 if it was not paused before
if duration > 0 then
  redis.call('ZADD', resumes, now + duration, queue)
  redis.call('HSET', pauses, '~' .. queue, duration)
  -- A renewal tells of the end. The next one of each dispatcher may come after it.
  hurry()
else
  redis.call('ZREM', resumes, queue)
  redis.call('HDEL', pauses, '~' .. queue)
end
if note ~= '' then redis.call('HSET', pauses, queue, note) else redis.call('HDEL', pauses, queue) end
local new = redis.call('SADD', paused, queue)
if new == 1 then
  local fields = {'queue', queue, 'until', duration > 0 and now + duration or 0}
  if note ~= '' then fields[5], fields[6] = 'why', note end
  telling().at_home('queue_paused', fields)
end
return new
