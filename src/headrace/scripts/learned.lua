-- Learned: what jobs did again in each runner, those first that are to be tried first.
-- clock   now
-- key     learned  zset  learned
-- arg     keep     int   microseconds until a name is forgotten
-- return  {text, ...}
return redis.call('ZRANGE', learned, now - keep, '+inf', 'BYSCORE')
