-- Purge: ready jobs of a queue are deleted, a bounded number at a time; for callers that wait they were cancelled.
-- include finish lane_exit line_size
-- keys    queues wake
-- arg     queue   text
-- arg     limit   int   most jobs, at most 1000
-- route   desk
-- return  {removed, left}
local removed = 0
local function remove(id)
  finish(id, 'cancelled', '{"type":"Cancelled","message":"its queue was purged"}', 0)
  removed = removed + 1
end
while removed < limit do
  local popped = redis.call('ZPOPMIN', ready .. queue, limit - removed)
  if #popped == 0 then break end
  for n = 1, #popped, 2 do
    if string.byte(popped[n]) ~= 126 then remove(popped[n]) end
  end
  -- Those whose turn it is now are ready, too.
  line_up_all()
end
-- Those of its lanes, from which the classes that stood in the line have left.
if redis.call('EXISTS', classes .. queue) == 1 then
  limiting().clear_lanes(queue, function() return limit - removed end, remove)
end
line_up_all()
if batch.limiting then
  batch.limiting.store_entering()
  batch.limiting.store_lanes()
end
-- Nodes that become ready by this purge were not there when it began, and stay.
local left = limiting().line_size(queue)
return function()
  if redis.call('EXISTS', ready .. queue) == 0 then
    redis.call('UNLINK', wake .. queue, wake .. queue .. '|process', wake .. queue .. '|fork',
      wake .. queue .. '|thread', wake .. queue .. '|async')
    redis.call('SREM', queues, queue)
  end
  return {removed, left}
end
