-- Flow state: a workflow as a script finds it, what the script adds to its counters, and what it leaves to tend.
-- keys    flow flows chores
-- lazy    graph touch is_over count become leave
-- batch   touched  {}    by id: workflows as the script found them, and what it adds to their counters
-- batch   room     500   nodes and edges that the script may still handle
-- `there` is false once it was deleted.
local function touch(fid)
  local f = batch.touched[fid]
  if not f then
    local h = redis.call('HMGET', flow .. fid, 'st', 'definition', 'created', 'cancel', 'undoing')
    f = {there = h[1], state = h[1], definition = h[2] or '', created = h[3], cancel = h[4], undoing = h[5], add = {}}
    batch.touched[fid] = f
  end
  return f
end

local function is_over(f) return f.there and f.state ~= 'pending' and f.state ~= 'running' and f.state ~= 'stopped' end

local function count(f, field, by) f.add[field] = (f.add[field] or 0) + by end

local function become(fid, f, state)
  for _, view in ipairs({'|', f.definition .. '|'}) do
    redis.call('ZREM', flows .. view .. f.state, fid)
    redis.call('ZADD', flows .. view .. state, f.created, fid)
  end
  redis.call('HSET', flow .. fid, 'st', state)
  f.state = state
end

-- A chore that its workflow has not ended before. The same one may be left again while it waits: it counts once.
local function leave(f, chore)
  if redis.call('ZADD', chores, 'NX', now, chore) == 1 then count(f, 'active', 1) end
end
