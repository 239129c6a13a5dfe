-- Pause: no job of a queue is claimed any more; enqueuing goes on, running jobs finish. The end of an earlier pause does not count any more.
-- include hurry
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
return redis.call('SADD', paused, queue)
