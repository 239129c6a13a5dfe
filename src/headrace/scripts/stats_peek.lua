-- Stats_peek: the oldest batches that wait to be added, and how far behind the worker is that adds them.
-- keys    line=stat-stream flow=stat-flow
-- arg     limit  int     most batches
-- route   home
-- return  {now, batches that wait, id of the oldest or empty, lost batches, when one was taken last or 0, {{id, {batch,
--         bytes}}, ...}, when the last batch was sent that a broker's consumer took, or 0}
local facts = redis.call('HMGET', flow, 'lost', 'taken', 'upto')
local oldest = redis.call('XRANGE', line, '-', '+', 'COUNT', 1)[1]
return {now, redis.call('XLEN', line), oldest and oldest[1] or '', tonumber(facts[1] or 0), tonumber(facts[2] or 0),
  limit > 0 and redis.call('XRANGE', line, '-', '+', 'COUNT', limit) or {}, tonumber(facts[3] or 0)}
