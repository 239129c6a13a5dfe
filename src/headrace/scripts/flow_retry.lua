-- Retry: a workflow goes on from its failed nodes, which run again.
-- include edges
-- route   of id
-- return  running | missing | live (another one of its key) | undone | the state that does not allow it
local f = graph().touch(id)
if not f.there then return 'missing' end
if f.cancel then return 'cancelled' end
-- What failed of one that succeeded was coped with: nothing waits for it.
-- Of one that waits for its start nothing runs before that, see begin_node.
if f.state == 'succeeded' or redis.call('EXISTS', broken .. id) == 0 then return f.state end
if f.undoing then return 'undone' end
if f.state == 'failed' then
  local key = redis.call('HGET', flow .. id, 'key')
  if key then
    local other = redis.call('GET', live .. f.definition .. ':' .. key)
    if other and other ~= id then return 'live' end
    redis.call('SET', live .. f.definition .. ':' .. key, id)
  end
  redis.call('ZREM', lapses, id)
  redis.call('HDEL', flow .. id, 'finished')
  graph().become(id, f, 'running')
end
graph().retry_broken(id, f)
graph().count(f, 'active', 0)
return function() return f.state end
