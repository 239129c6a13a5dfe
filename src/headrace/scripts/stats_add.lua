-- Stats_add: a writer's merged counts are added to their buckets, once however often they are sent.
-- include stats_apply
-- keys    seen=sender:<sender>
-- arg     sender   text    a writer; its batches come one after another
-- arg     number   text    number of the batch; the same again means: the reply was lost
-- arg     window   int     seconds for which the number is remembered
-- route   home
-- return  {ok | repeated, {counters that refused: full, or no number}}
-- This comes first: once a script has written, a server whose memory is full lets it write on, so it is all or nothing.
if redis.call('SET', seen, number, 'EX', window, 'GET') == number then return {'repeated', {}} end
return {'ok', apply(buckets, index)}
