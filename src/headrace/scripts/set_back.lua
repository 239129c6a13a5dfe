-- Set back: the server's clock was set back.
-- What began while it was ahead ends when its length is over, not when the clock is there again. Included, never run
-- alone.
-- lazy    leases set_back
-- keys    scheduled timers chores resumes pauses
local function set_back()
  -- Limits: timers are looked at in pieces, see limit_timers.
  if redis.call('EXISTS', timers) == 1 then
    redis.call('ZADD', timers, now, 'clock:0')
    redis.call('ZADD', scheduled, now, '~')
  end
  -- Background work waits for no time of its own.
  for _, chore in ipairs(redis.call('ZRANGE', chores, 0, 999)) do
    if string.sub(chore, 1, 8) ~= 'abandon:' then redis.call('ZADD', chores, 'LT', now, chore) end
  end
  for _, queue in ipairs(redis.call('ZRANGE', resumes, 0, 999)) do
    local length = tonumber(redis.call('HGET', pauses, '~' .. queue))
    if length then redis.call('ZADD', resumes, 'LT', now + length, queue) end
  end
end
