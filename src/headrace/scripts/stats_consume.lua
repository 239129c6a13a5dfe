-- Stats_consume: the oldest batches of the line leave it, and what they hold together is added to the buckets.
-- include stats_apply
-- keys    line=stat-stream flow=stat-flow
-- arg     first    text    id of the oldest batch that was merged
-- arg     beyond   text    the least id after the last one
-- arg     keep     int     seconds after which a line that is not used goes away
-- route   home
-- return  {ok | gone, {counters that refused}}
-- Batches leave from the head only: if the first is there, all are. If not, another took them, or a reply was lost.
if first == '' or #redis.call('XRANGE', line, first, first) == 0 then return {'gone', {}} end
-- An empty line stays: it remembers its last id, which else a batch of the same millisecond would get again.
redis.call('XTRIM', line, 'MINID', beyond)
redis.call('EXPIRE', line, keep)
redis.call('HSET', flow, 'taken', now)
redis.call('EXPIRE', flow, keep)
return {'ok', apply(buckets, index)}
