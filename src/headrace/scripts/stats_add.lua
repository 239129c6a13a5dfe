-- Stats_add: a writer's merged counts are added to their buckets, once however often they are sent.
-- include stats_apply
-- key     seen     string  sender:<sender>  number of this sender's last batch
-- arg     sender   text    a writer; its batches come one after another
-- arg     number   text    number of the batch; the same again means: the reply was lost
-- arg     window   int     seconds for which the number is remembered
-- arg     buckets  packed  {date, end in seconds, {label, {field, n, ...}, ...}} each; n as text, since Lua's numbers
--                          are shorter
-- arg     index    packed  {parent, {end in seconds, part, ...}} each
-- route   home
-- return  {ok | repeated, {counters that refused: full, or no number}}
-- This comes first: once a script has written, a server whose memory is full lets it write on, so it is all or nothing.
if redis.call('SET', seen, number, 'EX', window, 'GET') == number then return {'repeated', {}} end
return {'ok', apply(buckets, index)}
