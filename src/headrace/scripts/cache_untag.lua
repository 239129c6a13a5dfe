-- Cache untag: a cached value leaves the indexes of its tags.
-- derive  value   string  cache:<name>  tags joined by commas, a line feed, MessagePack
-- derive  tagged  zset    tagged:<tag>
local function tags_of(one)
  local head = redis.pcall('GETRANGE', value .. one, 0, 2047)
  return type(head) == 'string' and string.match(head, '^([^\n]*)\n') or ''
end
local function unindex(one, labels)
  for tag in string.gmatch(labels, '[^,]+') do redis.call('ZREM', tagged .. tag, one) end
end
local function untag(one) unindex(one, tags_of(one)) end
