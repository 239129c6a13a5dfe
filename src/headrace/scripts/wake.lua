-- Wake: a worker that sleeps on a queue hears that it has work. Included, never run alone.
-- keys    queues wake
-- One token a queue, a set's only member so that two become one: it wakes one idle dispatcher, which passes it on when
-- it leaves work behind.
local function wake_up(queue)
  if redis.call('ZADD', wake .. queue, 0, '') == 1 then redis.call('SADD', queues, queue) end
end
