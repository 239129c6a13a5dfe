-- Pause: no job of a queue is claimed any more; enqueuing goes on, running jobs finish.
-- include cache_forget
-- key     paused  set   paused
-- arg     queue   text
-- arg     known   text  name under which processes cache what is paused
-- return  1 if it was not paused before
forget(known)
return redis.call('SADD', paused, queue)
