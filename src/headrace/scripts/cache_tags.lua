-- Cache tags: a cached value leaves the indexes of its tags; which tags were dropped since it was begun.
-- keys    value=cache tagged dropped
local function tags_of(one)
  local head = redis.pcall('GETRANGE', value .. one, 0, 2047)
  return type(head) == 'string' and string.match(head, '^([^\n]*)\n') or ''
end
local function unindex(one, tags)
  for tag in string.gmatch(tags, '[^,]+') do redis.call('ZREM', tagged .. tag, one) end
end
local function untag(one) unindex(one, tags_of(one)) end
-- Whether a tag of a value, or all values, were dropped since a lease was given.
local function is_stale(lease, tags)
  for tag in string.gmatch(tags .. ',*', '[^,]+') do
    if tonumber(redis.call('GET', dropped .. tag) or 0) > tonumber(lease) then return true end
  end
end
