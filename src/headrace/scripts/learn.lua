-- Learn: what jobs did again in each runner is remembered, for the next start of a worker with preload=auto.
-- clock   now
-- key     learned  zset    learned
-- removes first learned
-- arg     names    packed  {text, ...}, those first that are to be tried first; at most 200
-- arg     keep     int     microseconds until a name is forgotten
-- arg     most     int     names that are kept; the oldest go first
-- return  ok
redis.call('ZREMRANGEBYSCORE', learned, '-inf', now - keep)
for place, name in ipairs(names) do redis.call('ZADD', learned, now + place, name) end
redis.call('ZREMRANGEBYRANK', learned, 0, -most - 1)
redis.call('PEXPIRE', learned, math.ceil(keep / 1000))
return 'ok'
