-- Cache set: a value is stored; one that was computed under a lease only if nothing was written or dropped since.
-- include cache_untag
-- clock   now
-- key     filling  string  filling:<name>
-- key     cached   zset    cached
-- derive  dropped  string  dropped:<tag>
-- arg     name     text
-- arg     data     text    MessagePack
-- arg     ttl      int     milliseconds
-- arg     tags     text    joined by commas
-- arg     lease    text    number from cache_lease, or empty: store whatever happened
-- return  stored | refused
local function dropped_since(tag) return tonumber(redis.call('GET', dropped .. tag) or 0) > tonumber(lease) end
if lease ~= '' then
  local stale = redis.call('GET', filling) ~= lease or dropped_since('*')
  for tag in string.gmatch(tags, '[^,]+') do stale = stale or dropped_since(tag) end
  if stale then
    -- Left in place, a lease from before the drop would refuse everybody's next value too.
    if redis.call('GET', filling) == lease then redis.call('UNLINK', filling) end
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
untag(name)
redis.call('UNLINK', filling)
redis.call('SET', value .. name, tags .. '\n' .. data, 'PX', ttl)
list(cached)
for tag in string.gmatch(tags, '[^,]+') do list(tagged .. tag) end
return 'stored'
