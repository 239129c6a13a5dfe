-- Greet: a client compares its layout with the store's, and leaves its own in an empty store.
-- keys    schema migration moving=move place=shard
-- arg     version    int     what this client writes
-- arg     number     text    of shards, as this client takes it, such as 12 or 12+4
-- arg     store      text    of several shards, the store's id as this client knows it; empty: it makes no shard
-- arg     elsewhere packed {prefix, ...} of shards that are on other servers
-- route   all
-- return  {the version that the store has, below 1 for what no Headrace wrote, 1 while it is on its way to another and
--         else 0, where it is being moved to or has moved to, else '', the same from, 1 once it has moved,
--         its place: number of the shard, number of shards, store}
local found = redis.call('GET', schema)
for _, other in ipairs(found and {} or elsewhere) do
  -- The URLs are in another order than those of this store.
  local there = redis.call('GET', other .. 'shard')
  if there then return {version, 0, '', '', 0, there} end
end
local shard = schema:match(':(%d+)[.%d]*}:schema$')
if not found and store == '' and number ~= '1' then
  -- Home is away, and alone knows the store's name: this shard is made later.
  return {version, 0, '', '', 0, shard .. ' of ' .. number .. ' of '}
end
if store ~= '' then
  local was, id = (redis.call('GET', place) or '0 of 1 of ' .. store):match('^%d+ of (%S+) of (%S+)$')
  -- It has more shards from now on. Home names the store; the others know its name.
  local grown = string.find(number, was .. '+', 1, true) == 1 and (shard == '0' or id == store)
  if grown or not found then redis.call('SET', place, shard .. ' of ' .. number .. ' of ' .. id) end
end
if not found then redis.call('SET', schema, version) end
found = found or version
local move = redis.call('HMGET', moving, 'to', 'from', 'done')
return {tonumber(found) or 0, redis.call('EXISTS', migration), move[1] or '', move[2] or '', move[3] and 1 or 0,
  redis.call('GET', place) or '0 of 1'}
