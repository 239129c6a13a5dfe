-- Cache untag: a cached value leaves the indexes of its tags.
-- derive  value   string  cache:<name>  tags joined by commas, a line feed, MessagePack
-- derive  tagged  zset    tagged:<tag>
local function untag(one)
  local head = redis.pcall('GETRANGE', value .. one, 0, 2047)
  if type(head) ~= 'string' then return end
  for tag in string.gmatch(string.match(head, '^([^\n]*)\n') or '', '[^,]+') do
    redis.call('ZREM', tagged .. tag, one)
  end
end
