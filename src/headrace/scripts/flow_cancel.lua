-- Cancel: nothing of a workflow starts any more, and what runs is asked to stop; a chore does it node by node.
-- include node
-- route   of id
-- return  asked | missing | the final state that it is in
local f = graph().touch(id)
if not f.there then return 'missing' end
if graph().is_over(f) then return f.state end
if not f.cancel then
  -- What undoes its nodes must not be held. A full server lets this pass, since a removal comes first.
  redis.call('HDEL', flow .. id, 'stopped')
  redis.call('HSET', flow .. id, 'cancel', 1)
  redis.call('ZREM', lapses, id)
  f.cancel = 1
  if f.state ~= 'running' then graph().become(id, f, 'running') end
  -- It has not ended before the chore is done.
  graph().leave(f, 'cancel:' .. id .. ':1')
end
return 'asked'
