-- Wake: a worker that sleeps on a queue hears that it has work; or all hear that something is new.
-- keys    queues wake owners mail
-- One token a queue, a set's only member: it wakes one idle dispatcher, which passes it on if it leaves work behind.
local function wake_up(queue)
  if redis.call('ZADD', wake .. queue, 0, '') == 1 then redis.call('SADD', queues, queue) end
end

-- Every incarnation renews at once.
local function hurry()
  for _, other in ipairs(redis.call('ZRANGE', owners, 0, -1)) do redis.call('PUBLISH', mail .. other, 'renew') end
end
