-- Watch: a waiter asks for a workflow's end; if it is not there yet, it will be announced on the channel done:<id>.
-- keys    waited flow
-- removes first waited
-- arg     wait    int   microseconds that the waiter is ready to wait
-- route   of id
-- return  the state | missing
local state = redis.call('HGET', flow .. id, 'st')
if not state then return 'missing' end
if wait > 0 and state ~= 'succeeded' and state ~= 'failed' and state ~= 'cancelled' then
  redis.call('ZADD', waited, 'GT', now + wait, id)
end
return state
