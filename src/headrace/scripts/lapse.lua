-- Lapse: workflows leave whose retention is over, or that were not started; an open callback keeps one a minute longer.
-- include drop
-- removes first lapses
-- arg     limit   int   most workflows, at most 500
-- route   desk
-- return  {removed, now, next end of retention or 0}
local due = limit > 0 and redis.call('ZRANGEBYSCORE', lapses, '-inf', now, 'LIMIT', 0, limit) or {}
local count_of = 0
-- Whether a caller is still to be told of its end, or is being told.
local function tells(fid)
  for _, code in ipairs(redis.call('HMGET', flow .. fid, 'on_success', 'on_failure')) do
    local state = code and redis.call('HGET', job .. node_of(fid, code), 'st')
    if state == 'ready' or state == 'running' or state == 'scheduled' then return true end
  end
  return false
end

for _, fid in ipairs(due) do
  if batch.room <= 0 then break end
  local h = redis.call('HMGET', flow .. fid, 'st', 'active')
  local state = h[1]
  local waits = state == 'pending' or state == 'stopped' and tonumber(h[2]) == 0
  if not state or waits or state == 'succeeded' or state == 'failed' or state == 'cancelled' then
    if state and tells(fid) then
      redis.call('ZADD', lapses, now + 60000000, fid)
    else
      drop_flow(fid)
      count_of = count_of + 1
    end
  else
    -- It lives: whatever put it here, its end will do so again.
    redis.call('ZREM', lapses, fid)
  end
  batch.room = batch.room - 10
end
return function() return {count_of, now, redis.call('ZRANGE', lapses, 0, 0, 'WITHSCORES')[2] or 0} end
