-- Withdraw: a waiting job ends as cancelled; a running one is asked to stop.
-- include finish take_out
-- keys    expires totals job log
-- Returns cancelled | asked | missing | the state in which there is nothing to cancel.
local function withdraw(id, ttl)
  local f = redis.call('HMGET', job .. id, 'st', 'queue', 'task', 'owner')
  local state = f[1]
  if not state then return 'missing' end
  if state == 'running' then naming().ask_to_stop(id, f[4]) return 'asked' end
  if state == 'blocked' then
    -- Its end would free its children, and nothing starts in a workflow that has ended or that is undone.
    local f = is_node(id) and graph().touch(flow_of(id))
    if f and (graph().is_over(f) or f.undoing and not f.cancel) or not graph().is_part(id) then return state end
  end
  if not naming().take_out(id, state, f[2], f[3]) then return state end
  finish(id, 'cancelled', '{"type":"Cancelled","message":"cancelled before it started"}', ttl)
  return 'cancelled'
end

-- A job leaves with all that is stored of it, unless it runs; a node leaves with its workflow only.
-- Returns deleted | missing | node | broadcast | running | blocked.
local function discard(id)
  if is_node(id) then return redis.call('EXISTS', job .. id) == 1 and 'node' or 'missing' end
  local f = redis.call('HMGET', job .. id, 'st', 'queue')
  local state = f[1]
  if not state then return 'missing' end
  if state == 'running' then return state end
  if f[2] and string.sub(f[2], 1, 1) == '@' and not finals[state] then return 'broadcast' end
  if not finals[state] then
    local word = withdraw(id, 0)
    return word == 'cancelled' and 'deleted' or word
  end
  redis.call('ZREM', finals[state], id)
  redis.call('ZREM', expires, id)
  redis.call('HINCRBY', totals, 'bytes', 0 - redis.call('HSTRLEN', job .. id,
    state == 'succeeded' and 'result' or 'error'))
  redis.call('UNLINK', job .. id, log .. id)
  return 'deleted'
end
