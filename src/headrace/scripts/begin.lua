-- Begin: what waits for a workflow's start lines up: its roots, and what was held while it was stopped. Included.
-- include compensate edges
-- lazy    graph begin_roots begin_held
-- keys    held
-- Each goes on until the script's room is used up, and leaves the rest as a chore.
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
