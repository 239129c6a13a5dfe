-- Again: failed nodes of a workflow line up once more, with fresh budgets. Included, never run alone.
-- include compensate edges
-- lazy    graph retry_broken
-- The caller has taken it out of those that failed.
local function retry_node(id, f)
  local h = redis.call('HMGET', job .. id, 'st', 'soft', 'queue', 'priority')
  if h[1] ~= 'failed' and h[1] ~= 'quarantined' and h[1] ~= 'cancelled' then return end
  if h[1] == 'failed' then
    redis.call('ZREM', failed, id)
  elseif h[1] == 'quarantined' then
    redis.call('ZREM', quarantined, id)
  end
  redis.call('HDEL', job .. id, 'result', 'error', 'failures', 'crashes', 'interruptions', 'snoozes', 'limited',
    'finished', 'progress', 'note', 'data', 'cancel', 'expires', 'swallowed')
  count(f, h[1], -1)
  if not h[2] then count(f, 'hard', -1) end
  begin_node(id, f, h[3], h[4], 0)
end

local function retry_broken(fid, f)
  -- To clear a record and line it up takes as long as to walk two edges.
  local popped = batch.room > 0 and redis.call('ZPOPMIN', broken .. fid, math.ceil(batch.room / 2)) or {}
  for n = 1, #popped, 2 do
    retry_node(popped[n], f)
    batch.room = batch.room - 2
  end
  if redis.call('EXISTS', broken .. fid) == 1 then leave(f, 'retry:' .. fid) end
end
