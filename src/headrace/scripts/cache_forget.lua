-- Cache forget: a cached value goes, and whoever computes it now may not store it any more.
-- include cache_untag
-- key     cached   zset    cached
-- derive  filling  string  filling:<name>
local function forget(one)
  untag(one)
  redis.call('UNLINK', filling .. one)
  redis.call('ZREM', cached, one)
  return redis.call('UNLINK', value .. one)
end
