-- Stop: nothing of a workflow starts any more; what runs goes on. What is ready is held when its claim comes.
-- include flow_state
-- keys    chores
-- removes first chores
-- route   of id
-- return  stopped | missing | the final state that it is in
local f = graph().touch(id)
if not f.there then return 'missing' end
-- What is left of a cancelled one, to undo it, could not be started again.
if f.cancel then return 'cancelled' end
if f.state == 'pending' or f.state == 'running' then
  redis.call('HSET', flow .. id, 'stopped', 1)
  graph().become(id, f, 'stopped')
end
return f.state
