-- Cache untag: a cached value leaves the indexes of its tags.
-- keys    value=cache tagged
local function tags_of(one)
  local head = redis.pcall('GETRANGE', value .. one, 0, 2047)
  return type(head) == 'string' and string.match(head, '^([^\n]*)\n') or ''
end
local function unindex(one, labels)
  for tag in string.gmatch(labels, '[^,]+') do redis.call('ZREM', tagged .. tag, one) end
end
local function untag(one) unindex(one, tags_of(one)) end
