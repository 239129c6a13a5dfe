-- Alarm note: where alarms stand after a look; an event tells of each that was raised or cleared.
-- include telling
-- keys    watches watch
-- removes first watches
-- arg     alarms   packed  {{alarm, when it had been raised before the look or 0, {field, value, ...} to store, kind of
--                          the event or empty, {field, value, ...} of it}, ...}
-- route   home
-- return  nothing
-- Seconds that an alarm is kept which no worker declares.
local WEEK = 604800
for _, row in ipairs(alarms) do
  local name, was, fields, kind, facts = unpack(row)
  -- Repeated after a lost reply it changes nothing, and tells nothing.
  if (redis.call('HGET', watch .. name, 'raised') or '0') == was then
    redis.call('HSET', watch .. name, unpack(fields))
    if kind ~= '' then telling().happened(kind, facts) end
  end
  redis.call('EXPIRE', watch .. name, WEEK)
  redis.call('ZADD', watches, now, name)
end
redis.call('EXPIRE', watches, WEEK)
