-- Pause: no job of a queue is claimed any more; enqueuing goes on, running jobs finish. The end of an earlier pause does not count any more.
-- include hurry
-- include telling
-- clock   now
-- key     paused    set   paused
-- key     resumes   zset  resumes
-- removes first paused
-- arg     queue     text
-- arg     duration  int   microseconds after which it ends by itself; 0: it does not
-- return  1 if it was not paused before
if duration > 0 then
  redis.call('ZADD', resumes, now + duration, queue)
  -- A renewal tells of the end. The next one of each dispatcher may come after it.
  hurry()
else
  redis.call('ZREM', resumes, queue)
end
local new = redis.call('SADD', paused, queue)
if new == 1 then telling().happened('queue_paused', {'queue', queue, 'until', duration > 0 and now + duration or 0}) end
return new
