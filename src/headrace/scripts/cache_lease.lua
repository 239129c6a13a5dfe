-- Cache lease: whoever computes an absent value is told by what number its store will be accepted.
-- key     value    string  cache:<name>
-- key     filling  string  filling:<name>
-- key     leases   string  leases
-- arg     name     text
-- arg     life     int     seconds until the lease ends
-- return  the lease, shared by all who compute now; empty when there is a value
if redis.call('EXISTS', value) == 1 then return '' end
local lease = redis.call('GET', filling)
if not lease then
  lease = tostring(redis.call('INCR', leases))
  redis.call('SET', filling, lease, 'EX', life)
end
return lease
