-- Errand begin: a verb on many jobs is stored, for workers to do in pieces; only for jobs that are there now.
-- include hurry
-- clock   now
-- key     chores   zset  chores
-- key     errands  zset  errands
-- key     self     hash  errand:<id>
-- derive  of       hash  errand:<id>
-- removes first chores
-- arg     id       text    names the errand; the same again changes nothing
-- arg     fields   packed  {field, value, ...}: verb, state, queue, task, key, cause, who, by, total, rate, ttl
-- return  {field, value, ...} of the errand
if redis.call('EXISTS', self) == 0 then
  redis.call('HSET', self, 'phase', 'running', 'bound', string.format('%.0f', now), 'looked', 0, 'done', 0,
    unpack(fields))
  redis.call('EXPIRE', self, 604800)
  redis.call('ZADD', errands, now, id)
  redis.call('EXPIRE', errands, 604800)
  redis.call('ZADD', chores, now, 'errand:' .. id)
  -- A thousand are listed at most. One that is under way goes on as a chore, unless it is that old.
  for _, old in ipairs(redis.call('ZRANGE', errands, 0, -1001)) do
    redis.call('ZREM', errands, old)
    redis.call('ZREM', chores, 'errand:' .. old)
    redis.call('UNLINK', of .. old)
  end
  hurry()
end
return redis.call('HGETALL', self)
