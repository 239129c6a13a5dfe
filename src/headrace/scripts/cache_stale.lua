-- Cache stale: whether a tag of a value, or all values, were dropped since a lease was given.
-- Included, never run alone.
-- keys    dropped
local function is_stale(lease, tags)
  for tag in string.gmatch(tags .. ',*', '[^,]+') do
    if tonumber(redis.call('GET', dropped .. tag) or 0) > tonumber(lease) then return true end
  end
  return false
end
