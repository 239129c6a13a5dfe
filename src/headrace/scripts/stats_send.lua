-- Stats_send: a writer's merged counts join the line of batches that another process will add to the buckets.
-- keys    seen=sender:<sender> line=stat-stream flow=stat-flow
-- arg     sender   text    a writer; its batches come one after another
-- arg     number   text    number of the batch; the same again means: the reply was lost
-- arg     window   int     seconds for which the number is remembered
-- arg     most     int     batches that may wait
-- arg     hold     int     1: a full line takes no more; 0: its oldest batch is dropped, and counted as lost
-- arg     keep     int     seconds after which a line that is not used goes away
-- arg     batch    text    MessagePack
-- route   home
-- return  ok | repeated | full
if redis.call('GET', seen) == number then return 'repeated' end
local over = redis.call('XLEN', line) + 1 - most
if over > 0 then
  if hold == 1 then return 'full' end
  redis.call('HINCRBY', flow, 'lost', redis.call('XTRIM', line, 'MAXLEN', most - 1))
  redis.call('EXPIRE', flow, keep)
end
redis.call('XADD', line, '*', 'batch', batch)
redis.call('EXPIRE', line, keep)
redis.call('SET', seen, number, 'EX', window)
return 'ok'
