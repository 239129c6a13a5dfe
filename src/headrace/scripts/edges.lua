-- Edges: the children of nodes that ended are counted down, and line up or end with them.
-- include node
-- lazy    graph
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

local function fall_all()
  local due, by = batch.falling, batch.falls
  batch.falling, batch.falls = {}, {}
  for _, one in ipairs(due) do
    -- Scripts do not roll back: an unreadable record among its children must not stop what ends with it.
    pcall(fall, one[1], one[2], by[one[1]])
  end
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
    fall_all()
  end
end
