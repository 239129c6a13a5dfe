-- Errand read: errands, newest first, or one of them.
-- key     errands  zset  errands
-- derive  of       hash  errand:<id>
-- removes first errands
-- arg     id       text  one errand; empty: all
-- arg     after    text  of all: those behind this one; empty: from the newest on
-- arg     limit    int   at most 100
-- return  {count, whether more follow, {{id, {field, value, ...}}, ...}}
local found = {}
-- A thousand are stored at most: nothing is behind one that is forgotten.
local first = after == '' and 0 or (redis.call('ZREVRANK', errands, after) or 1000) + 1
for _, one in ipairs(id ~= '' and {id} or redis.call('ZREVRANGE', errands, first, first + limit - 1)) do
  local fields = redis.call('HGETALL', of .. one)
  -- What has expired is listed no more.
  if #fields == 0 then redis.call('ZREM', errands, one) else found[#found + 1] = {one, fields} end
end
local count = redis.call('ZCARD', errands)
return {count, first + #found < count and 1 or 0, found}
