-- Callback: the node that is told of its workflow's end begins, once for each end. Included, never run alone.
-- include ids again
-- lazy    graph call_back
-- keys    failed quarantined
local function start_callback(id)
  local c = redis.call('HMGET', job .. id, 'queue', 'priority', 'st')
  if c[3] == 'failed' then
    redis.call('ZREM', failed, id)
  elseif c[3] == 'quarantined' then
    redis.call('ZREM', quarantined, id)
  end
  redis.call('HDEL', job .. id, 'result', 'error', 'finished', 'failures', 'crashes', 'interruptions', 'snoozes',
    'limited', 'again')
  ready_again(id, c[1], c[2], 0)
end

local function call_back(fid, code)
  if not code then return end
  local id = node_of(fid, code)
  local c = redis.call('HMGET', job .. id, 'st', 'token')
  -- One that still runs after an earlier end is not started beside itself but after it, unless that start does not end
  -- it.
  if c[1] == 'running' then redis.call('HSET', job .. id, 'again', c[2])
  -- One that waits for its start will see this end, too.
  elseif c[1] and c[1] ~= 'ready' and c[1] ~= 'scheduled' and c[1] ~= 'parked' then start_callback(id) end
end
