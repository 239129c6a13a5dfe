-- Greet: a client compares its layout with the store's, and leaves its own in an empty store.
-- key     schema     string  schema
-- key     migration  hash    migration
-- arg     version    int     what this client writes
-- return  {the version that the store has, below 1 for what no Headrace wrote, 1 while it is on its way to another and
--         else 0}
local found = redis.call('GET', schema)
if not found then
  redis.call('SET', schema, version)
  found = version
end
return {tonumber(found) or 0, redis.call('EXISTS', migration)}
