-- Node: a node of a workflow lines up, or ends. A node is known by its id: nothing is read of a plain job.
-- include ids wake again flow_state
-- lazy    graph is_part end_node open_node call_back
-- keys    scheduled failed quarantined broken undo held
-- batch   walks      {}    nodes that ended, whose children are told
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
