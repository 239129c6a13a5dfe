-- Watch: a waiter asks for a job's end; if it is not there yet, its finish will be announced on the channel done:<id>.
-- keys    waited job
-- removes first waited
-- arg     wait    int   microseconds that the waiter is ready to wait
-- arg     most    int   bytes of a result or error that are returned; of a longer one, their number; negative: any
-- arg     follow  int   1: its changes are announced, too
-- route   of id
-- return  {state, result or its length or false, error likewise} | {missing}; if followed also token and words of
--         progress
local f = redis.call('HMGET', job .. id, 'st', 'result', 'error')
if not f[1] then return {'missing', false, false} end
local finals = {succeeded = true, failed = true, cancelled = true, quarantined = true, skipped = true}
if not finals[f[1]] and wait > 0 then
  redis.call('ZADD', waited, 'GT', now + wait, id)
  if follow == 1 then redis.call('HSET', job .. id, 'followed', now + wait, 'more', 1) end
end
for n = 2, 3 do
  if most >= 0 and f[n] and #f[n] > most then f[n] = #f[n] end
end
if follow == 1 then
  local said = redis.call('HMGET', job .. id, 'token', 'said')
  f[4], f[5] = said[1], said[2]
end
return f
