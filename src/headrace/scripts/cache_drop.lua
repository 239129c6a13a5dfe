-- Cache drop: values with a tag go, a bounded number at a time, and callers that compute one now may not store it.
-- include cache_tags
-- keys    cached leases
-- removes first cached
-- arg     tag      text    or * for all values
-- arg     first    int     1 at the first call of a deletion, 0 at those that go on
-- arg     life     int     seconds that a lease may live
-- arg     limit    int     most values, at most 1000
-- route   home
-- return  {{name, ...}, left}
if first == 1 then redis.call('SET', dropped .. tag, redis.call('INCR', leases), 'EX', life) end
local line = tag == '*' and cached or tagged .. tag
local rows, gone = redis.call('ZRANGE', line, 0, limit - 1, 'WITHSCORES'), {}
for n = 1, #rows, 2 do
  local one = rows[n]
  -- Past its end, an entry may speak of a value that was replaced since by one without the tag.
  if tonumber(rows[n + 1]) > now then
    untag(one)
    redis.call('UNLINK', value .. one)
    redis.call('ZREM', cached, one)
    gone[#gone + 1] = one
  end
  redis.call('ZREM', line, one)
end
return {gone, redis.call('ZCARD', line)}
