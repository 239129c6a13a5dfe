-- Unpark: parked jobs of a task line up at their old places.
-- A worker asks for it that knows the task, serves their queues and claims next.
-- include again
-- keys    parked:<task> parking
-- arg     limit    int     most jobs, at most 1000
-- arg     names    packed  queues that it serves
-- route   desk
-- return  jobs moved
local LOOK = 500
local served, mine, others, held = {}, {}, {}, redis.call('ZRANGE', parked, 0, LOOK - 1, 'WITHSCORES')
for _, queue in ipairs(names) do served[queue] = true end
for n = 1, #held, 2 do
  local queue = redis.pcall('HGET', job .. held[n], 'queue') or 'default'
  if type(queue) ~= 'string' or served[queue] then
    if #mine < 2 * limit then mine[#mine + 1], mine[#mine + 2] = held[n], held[n + 1] end
  else
    others[#others + 1] = held[n]
  end
end
for n = 1, #mine, 2 do redis.call('ZREM', parked, mine[n]) end
for n = 1, #mine, 2 do line_up_again(mine[n], mine[n + 1]) end
-- Where all are of queues that it does not serve, the next time others are looked at.
if #others == LOOK then
  for _, id in ipairs(others) do redis.call('ZADD', parked, now, id) end
end
if redis.call('EXISTS', parked) == 0 then redis.call('SREM', parking, task) end
return #mine / 2
