-- Begin: what waits for a workflow's start lines up: its roots, and what was held while it was stopped; failed nodes do
-- so once more, with fresh budgets. Each goes on until the script's room is used up, and leaves the rest as a chore.
-- include compensate edges
-- lazy    graph begin_roots begin_held retry_broken
-- keys    held
local function begin_roots(fid, f, from)
  local roots = redis.call('HGET', flow .. fid, 'roots') or ''
  local all = math.floor(#roots / 4)
  while from <= all and batch.room > 0 do
    open_node(node_of(fid, string.sub(roots, from * 4 - 3, from * 4)), f)
    from, batch.room = from + 1, batch.room - 1
  end
  if from <= all then leave(f, 'roots:' .. fid .. ':' .. from) end
end

local function begin_held(fid, f)
  local popped = batch.room > 0 and redis.call('ZPOPMIN', held .. fid, batch.room) or {}
  for n = 1, #popped, 2 do
    local queue = redis.call('HGET', job .. popped[n], 'queue')
    ready_again(popped[n], queue, 0, popped[n + 1])
    batch.room = batch.room - 1
  end
  if redis.call('EXISTS', held .. fid) == 1 then redis.call('ZADD', chores, now, 'held:' .. fid) end
end

-- The caller has taken it out of those that failed.
local function retry_node(id, f)
  local h = redis.call('HMGET', job .. id, 'st', 'soft', 'queue', 'priority')
  if h[1] ~= 'failed' and h[1] ~= 'quarantined' and h[1] ~= 'cancelled' then return end
  if h[1] == 'failed' then redis.call('ZREM', failed, id)
  elseif h[1] == 'quarantined' then redis.call('ZREM', quarantined, id) end
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
