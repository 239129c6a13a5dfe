-- Cache lease: a caller that computes an absent value gets the number by which it may store it, or waits.
-- include cache_tags
-- keys    filling:<name> leases
-- arg     tags     text    the value's, joined by commas
-- arg     life     int     seconds until the lease ends
-- arg     wait     int     microseconds that others have who compute it, before this one does too; 0: compute at once
-- route   home
-- return  {lease, shared by all who compute now, or empty: there is a value, microseconds to wait, 1: others wait}
if redis.call('EXISTS', value .. name) == 1 then return {'', 0, 0} end
local lease, at = string.match(redis.call('GET', filling) or '', '^(%d+) (%d+)$')
-- One of before a drop stores nothing any more.
if not lease or is_stale(lease, tags) then
  lease = redis.call('INCR', leases) .. ''
  redis.call('SET', filling, string.format('%s %.0f', lease, now), 'EX', life)
  return {lease, 0, 1}
end
if wait == 0 then return {lease, 0, 0} end
local left = tonumber(at) + wait - now
-- More than it waits is left only where the server's clock was set back: then it is this one's turn.
if left > 0 and left <= wait then return {lease, left, 0} end
redis.call('SET', filling, string.format('%s %.0f', lease, now), 'KEEPTTL')
return {lease, 0, 1}
