-- Pause: no job of a queue is claimed any more; enqueuing goes on, running jobs finish. The end of an earlier pause does not count any more.
-- include cache_forget
-- clock   now
-- key     paused    set   paused
-- key     resumes   zset  resumes
-- key     owners    zset  owners
-- channel mail      mail:<owner>
-- arg     queue     text
-- arg     duration  int   microseconds after which it ends by itself; 0: it does not
-- arg     known     text  name under which processes cache what is paused
-- return  1 if it was not paused before
forget(known)
if duration > 0 then
  redis.call('ZADD', resumes, now + duration, queue)
  -- A renewal tells of the end. The next one of each dispatcher may come after it.
  for _, owner in ipairs(redis.call('ZRANGE', owners, 0, -1)) do redis.call('PUBLISH', mail .. owner, 'renew') end
else
  redis.call('ZREM', resumes, queue)
end
return redis.call('SADD', paused, queue)
