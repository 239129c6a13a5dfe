-- Retry job: a finished job becomes ready again, with fresh budgets; its arguments and options are as they were.
-- include again unique_holder
-- keys    succeeded failed cancelled quarantined expires totals
-- Returns retried | missing | node | broadcast: its worker's alone | the state that does not allow it | taken <id>:
-- that job has its name. A node's workflow goes on from it, see flow_retry.
local function retry_job(id, request)
  if is_node(id) then return redis.call('EXISTS', job .. id) == 1 and 'node' or 'missing' end
  local f = redis.call('HMGET', job .. id, 'st', 'queue', 'priority', 'retried')
  if f[2] and string.sub(f[2], 1, 1) == '@' then return 'broadcast' end
  local index = ({succeeded = succeeded, failed = failed, cancelled = cancelled, quarantined = quarantined})[f[1] or '']
  if not f[1] then return 'missing' end
  if f[4] == request then return 'retried' end
  if not index then return f[1] end
  local holder = is_unique(id) and naming().retake(id)
  if holder then return 'taken ' .. holder end
  local field = f[1] == 'succeeded' and 'result' or 'error'
  -- not -x: -0 is no integer to a server
  redis.call('HINCRBY', totals, 'bytes', 0 - redis.call('HSTRLEN', job .. id, field))
  redis.call('ZREM', index, id)
  redis.call('ZREM', expires, id)
  redis.call('HDEL', job .. id, 'result', 'error', 'failures', 'crashes', 'interruptions', 'snoozes', 'limited',
    'finished', 'progress', 'note', 'data', 'cancel', 'expires', 'swallowed')
  redis.call('HSET', job .. id, 'retried', request)
  ready_again(id, f[2], f[3], 0)
  return 'retried'
end
