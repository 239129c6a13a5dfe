-- Resume: jobs of a paused queue are claimed again, and somebody is woken for them.
-- include wake
-- include cache_forget
-- key     paused   set   paused
-- key     resumes  zset  resumes
-- derive  ready    zset  ready:<queue>
-- arg     queue    text
-- arg     known    text  name under which processes cache what is paused
-- return  1 if it was paused
forget(known)
local was = redis.call('SREM', paused, queue)
redis.call('ZREM', resumes, queue)
if redis.call('EXISTS', ready .. queue) == 1 then wake_up(queue) end
return was
