-- Edges: the children of nodes that ended are counted down, and line up or end with them. So do roots, nodes that were
-- held or failed, at a start or a retry: until the script's room is used up, which leaves the rest as a chore.
-- include node
-- lazy    graph begin_roots begin_held retry_broken
-- keys    held
-- batch   falling  {}    {child, workflow} of the children whose parents have ended in this script, in order
-- batch   falls    {}    by child: how many of its parents these were; one count-down a child
-- step    walk_all
local FIRST = 100

-- One edge: see the table in docs/design/workflows.md.
local function step(walk, child, policy)
  if walk.released == 'failed' and policy ~= 's' then return end
  local skip = policy ~= 'c' and walk.state == 'skipped'
  if not SUCCESS[walk.state] then
    if policy == 's' then return end
    skip = policy == 'k'
  end
  if skip then redis.call('HSET', job .. child, 'skip', 1)
  elseif walk.state == 'skipped' then redis.call('HINCRBY', job .. child, 'skips', 1) end
  local falls = batch.falls
  if not falls[child] then batch.falling[#batch.falling + 1] = {child, walk.f} end
  falls[child] = (falls[child] or 0) + 1
end

local function fall(child, f, by)
  if redis.call('HINCRBY', job .. child, 'pending', -by) == 0 then open_node(child, f) end
end

local function walk_some(walk)
  local edges = math.floor(#walk.children / 5)
  -- Of a wide one only the first children, in the script that ended it: they run while the others are walked to.
  local last = walk.from == 1 and edges > 2 * FIRST and FIRST or edges
  while walk.from <= last and batch.room > 0 do
    local at = walk.from * 5 - 4
    pcall(step, walk, node_of(walk.id, string.sub(walk.children, at, at + 3)),
      string.sub(walk.children, at + 4, at + 4))
    walk.from, batch.room = walk.from + 1, batch.room - 1
  end
  if walk.from <= edges then
    -- Its workflow has not ended as long as children wait for this chore.
    leave(walk.f, 'walk:' .. walk.id .. ':' .. walk.from .. ':' .. walk.state .. ':' .. (walk.released or ''))
  end
end

local function walk_all()
  -- Each once, however often this runs in one script: a walk that left a chore would leave, and count, another.
  while #batch.walks > 0 or #batch.falling > 0 do
    local due = batch.walks
    batch.walks = {}
    for _, walk in ipairs(due) do walk_some(walk) end
    local falling, falls = batch.falling, batch.falls
    batch.falling, batch.falls = {}, {}
    -- Scripts do not roll back: an unreadable record among its children must not stop what ends with it.
    for _, one in ipairs(falling) do pcall(fall, one[1], one[2], falls[one[1]]) end
  end
end

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
  local h = redis.call('HMGET', job .. id, 'st', 'soft', 'queue', 'priority', 'pending', 'token')
  if h[1] ~= 'failed' and h[1] ~= 'quarantined' and h[1] ~= 'cancelled' then return end
  if h[1] == 'failed' then redis.call('ZREM', failed, id)
  elseif h[1] == 'quarantined' then redis.call('ZREM', quarantined, id) end
  redis.call('HDEL', job .. id, 'result', 'error', 'failures', 'crashes', 'interruptions', 'snoozes', 'limited',
    'finished', 'progress', 'note', 'data', 'cancel', 'expires', 'swallowed')
  count(f, h[1], -1)
  if not h[2] then count(f, 'hard', -1) end
  -- One that was cancelled before its parents had ended waits for them again.
  if h[6] or (tonumber(h[5]) or 0) <= 0 then begin_node(id, f, h[3], h[4], 0)
  else redis.call('HSET', job .. id, 'st', 'blocked') end
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
