-- Cache get: a cached value is read, without being tracked.
-- key     value  string  cache:<name>
-- arg     name   text
-- route   home
-- return  what cache_set stored, or nil
local found = redis.pcall('GET', value)
return type(found) == 'string' and found
