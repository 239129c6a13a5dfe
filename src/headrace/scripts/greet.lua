-- Greet: a client compares its layout with the store's, and leaves its own in an empty store.
-- keys    schema migration moving=move place=shard
-- arg     version    int     what this client writes
-- arg     count      int     of shards, as this client takes it
-- arg     store      text    of several shards, the store's id as this client knows it; empty: it makes no shard
-- route   all
-- return  {the version that the store has, below 1 for what no Headrace wrote, 1 while it is on its way to another and
--         else 0, where it is being moved to or has moved to, else '', the same from, 1 once it has moved,
--         its place: number of the shard, number of shards, store}
local found = redis.call('GET', schema)
if not found then
  redis.call('SET', schema, version)
  if store ~= '' then
    redis.call('SET', place, schema:match(':(%d+)}:schema$') .. ' of ' .. count .. ' of ' .. store)
  end
  found = version
end
local move = redis.call('HMGET', moving, 'to', 'from', 'done')
return {tonumber(found) or 0, redis.call('EXISTS', migration), move[1] or '', move[2] or '', move[3] and 1 or 0,
  redis.call('GET', place) or '0 of 1'}
