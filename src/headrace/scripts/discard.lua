-- Discard: a job leaves with all that is stored of it, unless it runs. Included, never run alone.
-- include withdraw
-- keys    expires totals job log
-- Returns deleted | missing | node | broadcast | running | blocked. A node belongs to its workflow, which is deleted as
-- a whole.
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
