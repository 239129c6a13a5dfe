-- Create: a workflow's nodes are stored, up to 500 a call; with the last of them it is complete, listed and may start.
-- include drop
-- arg     definition text
-- arg     key        text    only one of it may live; or empty
-- arg     first      int     number of the first node of this call
-- arg     size       int     number of the last node
-- arg     last       int     1: this call brings the last nodes
-- arg     unstarted  int     microseconds after which it leaves unless it was started; negative: it stays
-- arg     facts      packed  {field, value, ...} of the workflow's record
-- arg     nodes      packed  {code, {field, value, ...}} each
-- route   of id
-- return  {ok, id} | {more, id} | {live, id of the live workflow of this key} | {gone, id}: begin again
local known = redis.call('HMGET', flow .. id, 'st', 'size')
-- Complete already: its reply was lost.
if known[1] then return {'ok', id} end
local other = key ~= '' and redis.call('GET', live .. definition .. ':' .. key)
if other and other ~= id then
  drop_flow(id)
  redis.call('ZREM', chores, 'abandon:' .. id)
  return {'live', other}
end
-- It was removed meanwhile, as one that is never completed: what is left must not become half a workflow.
if first > 1 and not known[2] then return {'gone', id} end
for _, node in ipairs(nodes) do
  redis.call('HSET', job .. node_of(id, node[1]), 'st', 'blocked', unpack(node[2]))
end
redis.call('HSET', flow .. id, 'size', size, 'definition', definition)
if last == 0 then
  redis.call('ZADD', chores, now + 3600000000, 'abandon:' .. id)
  return {'more', id}
end
redis.call('ZREM', chores, 'abandon:' .. id)
redis.call('HSET', flow .. id, 'st', 'pending', 'created', now, 'active', 0, unpack(facts))
if key ~= '' then
  redis.call('HSET', flow .. id, 'key', key)
  redis.call('SET', live .. definition .. ':' .. key, id)
end
if unstarted >= 0 then
  redis.call('HSET', flow .. id, 'unstarted', unstarted)
  redis.call('ZADD', lapses, now + unstarted, id)
end
for _, view in ipairs({'|', '|pending', definition .. '|', definition .. '|pending'}) do
  redis.call('ZADD', flows .. view, now, id)
end
return {'ok', id}
