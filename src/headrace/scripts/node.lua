-- Node: a node of a workflow lines up, or ends; without active nodes a workflow has ended, or undoes what it did.
-- include ids wake again flow_state telling
-- lazy    graph is_part end_node open_node call_back
-- keys    scheduled failed quarantined broken undo held lapses waited live done
-- batch   walks      {}    nodes that ended, whose children are told
-- step    count_all
local SUCCESS = {succeeded = true, skipped = true}

local function start_callback(id)
  local c = redis.call('HMGET', job .. id, 'queue', 'priority', 'st')
  if c[3] == 'failed' then redis.call('ZREM', failed, id)
  elseif c[3] == 'quarantined' then redis.call('ZREM', quarantined, id) end
  redis.call('HDEL', job .. id, 'result', 'error', 'finished', 'failures', 'crashes', 'interruptions', 'snoozes',
    'limited', 'again')
  ready_again(id, c[1], c[2], 0)
end

-- The node that is told of its workflow's end begins, once for each end.
local function call_back(fid, code)
  if not code then return end
  local id = node_of(fid, code)
  local c = redis.call('HMGET', job .. id, 'st', 'token')
  -- One that still runs after an earlier end is started after it, unless that start does not end it.
  if c[1] == 'running' then redis.call('HSET', job .. id, 'again', c[2])
  -- One that waits for its start will see this end, too.
  elseif c[1] and c[1] ~= 'ready' and c[1] ~= 'scheduled' and c[1] ~= 'parked' then start_callback(id) end
end

-- Whether a node is a job of its graph: no join, undo or callback, nor added by a start that did not succeed.
local function is_part(id)
  local n = redis.call('HMGET', job .. id, 'role', 'origin')
  if n[1] or not n[2] then return not n[1] end
  local g = redis.call('HMGET', job .. node_of(id, n[2]), 'grown', 'reserved')
  local number = number_of(id)
  return g[1] and number >= tonumber(g[2]) and number <= tonumber(g[1])
end

local function begin_node(id, f, queue, priority, delay)
  delay = tonumber(delay) or 0
  count(f, 'active', 1)
  if f.state == 'pending' then
    -- The end of a node that was cancelled alone has freed it: nothing runs before its workflow was started.
    redis.call('HSET', job .. id, 'st', 'stopped')
    redis.call('ZADD', held .. flow_of(id), now - (tonumber(priority) or 0) * 600000000, id)
  elseif delay > 0 then
    local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
    redis.call('HSET', job .. id, 'st', 'scheduled')
    redis.call('ZADD', scheduled, now + delay, id)
    if not nearest or now + delay < tonumber(nearest) then wake_up(queue or 'default') end
  else
    ready_again(id, queue, priority, 0)
  end
end

-- The caller has taken it out of the structure of its old state.
local function end_node(id, f, state, data)
  local n = redis.call('HMGET', job .. id, 'st', 'role', 'children', 'released', 'soft', 'undo')
  local role = n[2] or ''
  if n[1] ~= 'blocked' then count(f, 'active', -1) end
  local field = state == 'succeeded' and 'result' or 'error'
  redis.call('HDEL', job .. id, 'owner', 'cancel', field == 'result' and 'error' or 'result')
  redis.call('HSET', job .. id, 'st', state, 'finished', now, field, data)
  -- For those who look at failures. It stays as long as its workflow does, so it has no retention of its own.
  if state == 'failed' then redis.call('ZADD', failed, now, id)
  elseif state == 'quarantined' then redis.call('ZADD', quarantined, now, id) end
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

-- All its parents have ended: it lines up, or ends at once. A join is skipped with all that it stands for.
local function open_node(id, f)
  local c = redis.call('HMGET', job .. id, 'st', 'skip', 'role', 'queue', 'priority', 'delay', 'skips')
  if c[1] ~= 'blocked' or f.cancel then return end
  local joins = c[3] == 'join' or c[3] == 'pass'
  if c[2] or joins and c[7] and c[7] * 4 == redis.call('HSTRLEN', job .. id, 'parents') then
    end_node(id, f, 'skipped', '')
  elseif joins then
    end_node(id, f, 'succeeded', '')
  else
    begin_node(id, f, c[4], c[5], c[6])
  end
end

-- Nothing of it is active any more: it has ended, or goes back over what can be undone, or waits to be started again.
local function conclude(fid, f)
  local h = redis.call('HMGET', flow .. fid, 'hard', 'total', 'succeeded', 'failed', 'cancelled', 'quarantined',
    'skipped', 'ttl', 'key', 'on_success', 'on_failure', 'unstarted')
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
    f.undoing = 1
    begin_node(id, f, u[1], u[2], 0)
    redis.call('HINCRBY', flow .. fid, 'active', 1)
    f.add.active = nil
    return
  end
  become(fid, f, state)
  if state == 'failed' then telling().happened('workflow_failed', {'workflow', fid, 'definition', f.definition}) end
  redis.call('HSET', flow .. fid, 'finished', now)
  redis.call('HDEL', flow .. fid, 'stopped')
  redis.call('UNLINK', undo .. fid)
  if h[9] and redis.call('GET', live .. f.definition .. ':' .. h[9]) == fid then
    redis.call('UNLINK', live .. f.definition .. ':' .. h[9])
  end
  -- One that stays for ever may have had a time as it was stopped before its start.
  if (tonumber(h[8]) or -1) >= 0 then redis.call('ZADD', lapses, now + h[8], fid)
  else redis.call('ZREM', lapses, fid) end
  call_back(fid, state == 'succeeded' and h[10] or state ~= 'succeeded' and h[11])
  if redis.call('ZREM', waited, fid) == 1 then redis.call('PUBLISH', done .. fid, state) end
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
