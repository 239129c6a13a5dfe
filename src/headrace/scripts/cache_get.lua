-- Cache get: a cached value is read, without being tracked.
-- keys    value=cache:<name>
-- route   home
-- return  what cache_set stored, or nil
local found = redis.pcall('GET', value)
return type(found) == 'string' and found
