-- Errand read: errands, newest first, or one of them.
-- key     errands  zset  errands
-- derive  of       hash  errand:<id>
-- removes first errands
-- arg     id       text  one errand; empty: all
-- arg     limit    int   at most 100
-- return  {{id, {field, value, ...}}, ...}
local found = {}
for _, one in ipairs(id ~= '' and {id} or redis.call('ZREVRANGE', errands, 0, limit - 1)) do
  local fields = redis.call('HGETALL', of .. one)
  -- What has expired is listed no more.
  if #fields == 0 then redis.call('ZREM', errands, one) else found[#found + 1] = {one, fields} end
end
return found
