-- Cache delete: values go, and a caller that computes one of them now may not store it any more.
-- include cache_tags
-- keys    cached filling
-- arg     names    packed  {name, ...}, at most 1000
-- route   home
-- return  how many there were
local count = 0
for _, one in ipairs(names) do
  untag(one)
  redis.call('UNLINK', filling .. one)
  redis.call('ZREM', cached, one)
  count = count + redis.call('UNLINK', value .. one)
end
return count
