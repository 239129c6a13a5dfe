-- Greet: a client compares its layout with the store's, and leaves its own in an empty store.
-- key     schema   string  schema
-- arg     version  int     what this client writes
-- return  the version that the store has
local found = tonumber(redis.call('GET', schema))
if not found then
  redis.call('SET', schema, version)
  return version
end
return found
