-- Left behind: a broadcast to an incarnation that leaves, which has not begun, ends as cancelled.
-- Included, never run alone.
-- include finish
-- keys    ready
local function leave_behind(owner, limit, ttl)
  local popped = limit > 0 and redis.call('ZPOPMIN', ready .. '@' .. owner, limit) or {}
  for n = 1, #popped, 2 do
    -- Scripts do not roll back: an unreadable record must not take the jobs of its worker out of every structure.
    pcall(finish, popped[n], 'cancelled', '{"type":"Cancelled","message":"its worker left before it started"}', ttl)
  end
end
