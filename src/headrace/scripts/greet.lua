-- Greet: a client compares its layout with the store's, and leaves its own in an empty store.
-- key     schema     string  schema
-- key     migration  hash    migration
-- key     moving     hash    move
-- arg     version    int     what this client writes
-- return  {the version that the store has, below 1 for what no Headrace wrote, 1 while it is on its way to another and
--         else 0, where it is being moved to or has moved to, else '', the same from, 1 once it has moved}
local found = redis.call('GET', schema)
if not found then
  redis.call('SET', schema, version)
  found = version
end
local move = redis.call('HMGET', moving, 'to', 'from', 'done')
return {tonumber(found) or 0, redis.call('EXISTS', migration), move[1] or '', move[2] or '', move[3] and 1 or 0}
