-- Sample: the first dispatcher that asks within a minute learns how many jobs of each queue are ready.
-- keys    sampled queues ready
-- removes first queues
-- route   desk
-- return  {now, {queue, ready, ...}}; {now} where another one was first
local minute = string.format('%.0f', math.floor(now / 60000000))
if redis.call('SET', sampled, minute, 'EX', 120, 'GET') == minute then return {now} end
local sizes = {}
for _, queue in ipairs(redis.call('SRANDMEMBER', queues, 1000)) do
  local size = queue ~= '_own' and redis.call('ZCARD', ready .. queue) or 0
  if size > 0 then sizes[#sizes + 1], sizes[#sizes + 2] = queue, size end
end
return {now, sizes}
