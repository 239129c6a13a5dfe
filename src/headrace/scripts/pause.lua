-- Pause: no job of a queue is claimed any more; enqueuing goes on, running jobs finish.
-- key     paused  set   paused
-- arg     queue   text
-- return  1 if it was not paused before
return redis.call('SADD', paused, queue)
