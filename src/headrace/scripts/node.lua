-- Node: what the end of a job means for its workflow. Included by finish, never run alone.
-- A node is known by its id: nothing is read of a plain job.
-- include ids
-- include wake
-- include again
-- clock   now
-- key     scheduled  zset    scheduled
-- key     lapses     zset    lapses
-- key     chores     zset    chores
-- key     waited     zset    waited
-- derive  flow       hash    flow:<flow>
-- derive  flows      zset    flows:<view>
-- derive  broken     zset    broken:<flow>
-- derive  undo       zset    undo:<flow>
-- derive  live       string  live:<live>
-- derive  held       zset    held:<flow>
-- derive  job        hash    job:<id>
-- channel done       done:<id>
-- batch   touched  {}   by id: workflows as the script found them, and what it adds to their counters
-- batch   walks    {}   nodes that ended, whose children are told
-- batch   falling  {}   {child, workflow} of the children whose parents have ended in this script, in order
-- batch   falls    {}   by child: how many of its parents these were; one count-down a child
-- batch   room     500  nodes and edges that the script may still handle
-- step    walk_all
-- step    count_all
local FIRST = 100
local SUCCESS = {succeeded = true, skipped = true}

-- Whether a node is a job of its graph: not a join, an undo or a callback, nor one that a start stored which added nodes and
-- did not succeed.
local function is_part(id)
  local n = redis.call('HMGET', job .. id, 'role', 'origin')
  if n[1] or not n[2] then return not n[1] end
  local g = redis.call('HMGET', job .. node_of(id, n[2]), 'grown', 'reserved')
  local number = number_of(id)
  return g[1] and number >= tonumber(g[2]) and number <= tonumber(g[1])
end

-- A workflow as this script found it, and what it adds to its counters; 'there' is false once it was deleted.
local function touch(fid)
  local f = batch.touched[fid]
  if not f then
    local h = redis.call('HMGET', flow .. fid, 'state', 'definition', 'created', 'cancel')
    f = {there = h[1], state = h[1], definition = h[2] or '', created = h[3], cancel = h[4], add = {}}
    batch.touched[fid] = f
  end
  return f
end

local function count(f, field, by) f.add[field] = (f.add[field] or 0) + by end

-- A chore that its workflow has not ended before. The same one may be left again while it waits: it counts once.
local function leave(f, chore)
  if redis.call('ZADD', chores, 'NX', now, chore) == 1 then count(f, 'active', 1) end
end

local function become(fid, f, state)
  for _, view in ipairs({'|', f.definition .. '|'}) do
    redis.call('ZREM', flows .. view .. f.state, fid)
    redis.call('ZADD', flows .. view .. state, f.created, fid)
  end
  redis.call('HSET', flow .. fid, 'state', state)
  f.state = state
end

-- It lines up, whatever it waited for.
local function begin_node(id, f, queue, priority, delay)
  delay = tonumber(delay) or 0
  count(f, 'active', 1)
  if f.state == 'pending' then
    -- The end of a node that was cancelled alone has freed it: nothing runs before its workflow was started.
    redis.call('HSET', job .. id, 'state', 'stopped')
    redis.call('ZADD', held .. flow_of(id), now - (tonumber(priority) or 0) * 600000000, id)
  elseif delay > 0 then
    local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
    redis.call('HSET', job .. id, 'state', 'scheduled')
    redis.call('ZADD', scheduled, now + delay, id)
    if not nearest or now + delay < tonumber(nearest) then wake_up(queue or 'default') end
  else
    ready_again(id, queue, priority, 0)
  end
end

local function start_callback(id)
  local c = redis.call('HMGET', job .. id, 'queue', 'priority')
  redis.call('HDEL', job .. id, 'result', 'error', 'finished', 'failures', 'crashes', 'interruptions', 'snoozes', 'again')
  ready_again(id, c[1], c[2], 0)
end

-- The caller has taken it out of the structure of its old state.
local function end_node(id, f, state, data)
  local n = redis.call('HMGET', job .. id, 'state', 'role', 'children', 'released', 'soft', 'undo')
  local role = n[2] or ''
  if n[1] ~= 'blocked' then count(f, 'active', -1) end
  local field = state == 'succeeded' and 'result' or 'error'
  redis.call('HDEL', job .. id, 'owner', 'cancel', field == 'result' and 'error' or 'result')
  redis.call('HSET', job .. id, 'state', state, 'finished', now, field, data)
  if role == 'callback' then
    -- A callback was not counted as active either.
    count(f, 'active', 1)
    -- Its workflow ended once more while this start ran, which may have looked before.
    local again = redis.call('HMGET', job .. id, 'again', 'token')
    if again[1] and again[1] == again[2] then start_callback(id) end
    return
  end
  if role == 'undo' then return end
  if role == '' then
    count(f, state, 1)
    if not SUCCESS[state] then
      if not n[5] then count(f, 'hard', 1) end
      if not f.cancel then redis.call('ZADD', broken .. flow_of(id), now, id) end
    elseif state == 'succeeded' and n[6] then
      redis.call('ZADD', undo .. flow_of(id), now, id)
    end
  end
  -- A cancelled workflow starts nothing more, and a node that fails again has nothing to tell that it had not told.
  if n[3] and n[3] ~= '' and not f.cancel and (SUCCESS[state] or not n[4]) then
    batch.walks[#batch.walks + 1] = {id = id, f = f, state = state, children = n[3], from = 1, released = n[4]}
    -- Should it succeed at last, only those edges count that its failure did not.
    if not SUCCESS[state] then redis.call('HSET', job .. id, 'released', 'failed') end
  end
end

-- All its parents have ended: it lines up, or ends without having started. A join is skipped with all that it stands for.
local function open_node(id, f)
  local c = redis.call('HMGET', job .. id, 'state', 'skip', 'role', 'queue', 'priority', 'delay', 'skips')
  if c[1] ~= 'blocked' or f.cancel then return end
  local joins = c[3] == 'join' or c[3] == 'pass'
  if c[2] or joins and c[7] and c[7] * 4 == redis.call('HSTRLEN', job .. id, 'parents') then end_node(id, f, 'skipped', '')
  elseif joins then end_node(id, f, 'succeeded', '')
  else begin_node(id, f, c[4], c[5], c[6]) end
end

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
    -- Scripts do not roll back: an alien record among its children must not stop what ends with it.
    pcall(fall, one[1], one[2], by[one[1]])
  end
end

local function walk_some(walk)
  local edges = math.floor(#walk.children / 5)
  -- Of a wide one only the first children, in the script that ended it: they run while the others are walked to.
  local last = walk.from == 1 and edges > 2 * FIRST and FIRST or edges
  while walk.from <= last and batch.room > 0 do
    local at = walk.from * 5 - 4
    pcall(step, walk, node_of(walk.id, string.sub(walk.children, at, at + 3)), string.sub(walk.children, at + 4, at + 4))
    walk.from, batch.room = walk.from + 1, batch.room - 1
  end
  if walk.from <= edges then
    -- Its workflow has not ended as long as children wait for this chore.
    leave(walk.f, 'walk:' .. walk.id .. ':' .. walk.from .. ':' .. walk.state .. ':' .. (walk.released or ''))
  end
end

local function call_back(fid, code)
  if not code then return end
  local id = node_of(fid, code)
  local c = redis.call('HMGET', job .. id, 'state', 'token')
  -- One that still runs after an earlier end is not started beside itself but after it, unless that start does not end it.
  if c[1] == 'running' then redis.call('HSET', job .. id, 'again', c[2])
  -- One that waits for its start will see this end, too.
  elseif c[1] and c[1] ~= 'ready' and c[1] ~= 'scheduled' and c[1] ~= 'parked' then start_callback(id) end
end

-- Nothing of it is active any more: it has ended, or goes back over what can be undone, or waits to be started again.
local function conclude(fid, f)
  local h = redis.call('HMGET', flow .. fid, 'hard', 'total', 'succeeded', 'failed', 'cancelled', 'quarantined', 'skipped', 'ttl',
    'key', 'on_success', 'on_failure', 'unstarted')
  local ended = 0
  for n = 3, 7 do ended = ended + (tonumber(h[n]) or 0) end
  local state = f.cancel and 'cancelled' or (tonumber(h[1]) or 0) > 0 and 'failed' or 'succeeded'
  if state == 'succeeded' and ended < (tonumber(h[2]) or 0) then
    -- Some of its roots were never started: it waits for that, and not for ever.
    if f.state ~= 'stopped' then become(fid, f, 'pending') end
    if h[12] then redis.call('ZADD', lapses, now + h[12], fid) end
    return
  end
  local last = state ~= 'succeeded' and redis.call('ZPOPMAX', undo .. fid)[1]
  local by = last and redis.call('HGET', job .. last, 'undo')
  if by then
    local id = node_of(fid, by)
    local u = redis.call('HMGET', job .. id, 'queue', 'priority')
    redis.call('HSET', flow .. fid, 'undoing', 1)
    begin_node(id, f, u[1], u[2], 0)
    redis.call('HINCRBY', flow .. fid, 'active', 1)
    f.add.active = nil
    return
  end
  become(fid, f, state)
  redis.call('HSET', flow .. fid, 'finished', now)
  redis.call('HDEL', flow .. fid, 'stopped')
  redis.call('UNLINK', undo .. fid)
  if h[9] and redis.call('GET', live .. f.definition .. ':' .. h[9]) == fid then
    redis.call('UNLINK', live .. f.definition .. ':' .. h[9])
  end
  if tonumber(h[8]) and tonumber(h[8]) >= 0 then redis.call('ZADD', lapses, now + h[8], fid) end
  call_back(fid, state == 'succeeded' and h[10] or state ~= 'succeeded' and h[11])
  if redis.call('ZREM', waited, fid) == 1 then redis.call('PUBLISH', done .. fid, state) end
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

local function count_all()
  for fid, f in pairs(batch.touched) do
    if f.there and next(f.add) then
      local active
      for field, by in pairs(f.add) do
        if by ~= 0 or field == 'active' then
          local is = redis.call('HINCRBY', flow .. fid, field, by)
          if field == 'active' then active = is end
        end
      end
      f.add = {}
      if active == 0 and (f.state == 'running' or f.state == 'stopped') then conclude(fid, f) end
    end
  end
end
