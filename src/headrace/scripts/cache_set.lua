-- Cache set: a value is stored; one that was computed under a lease only if nothing was written or dropped since.
-- include cache_tags
-- keys    filling:<name> cached
-- arg     data     text    MessagePack
-- arg     ttl      int     milliseconds
-- arg     tags     text    joined by commas
-- arg     lease    text    number from cache_lease, or empty: store whatever happened
-- route   home
-- return  stored | refused
if lease ~= '' then
  local holds = string.match(redis.call('GET', filling) or '', '^%d+') == lease
  if not holds or is_stale(lease, tags) then
    -- Left in place, a lease from before the drop would refuse everybody's next value too.
    if holds then redis.call('UNLINK', filling) end
    return 'refused'
  end
end
local ends = now + ttl * 1000
local function list(index)
  -- Twice what comes goes, so that what expired does not pile up.
  local gone = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, 100)
  if #gone > 0 then redis.call('ZREM', index, unpack(gone)) end
  redis.call('ZADD', index, ends, name)
  local last = tonumber(redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2])
  redis.call('PEXPIRE', index, math.ceil((last - now) / 1000) + 1)
end
local before = tags_of(name)
-- This comes first: once a script has written, a server whose memory is full lets it write on, so it is all or nothing.
redis.call('SET', value .. name, tags .. '\n' .. data, 'PX', ttl)
unindex(name, before)
redis.call('UNLINK', filling)
list(cached)
for tag in string.gmatch(tags, '[^,]+') do list(tagged .. tag) end
return 'stored'
