-- Limit keep: a program goes on holding a gate, for one more lease.
-- include lanes
-- keys    timers
-- removes first timers
-- arg     passed  text    the gate, <limit>:<value>
-- arg     holder  text
-- arg     lease   int   microseconds
-- route   home
-- return  1, or 0 where its lease was over
local member = 'hold:' .. passed .. '|' .. holder
if not redis.call('ZSCORE', timers, member) then return 0 end
redis.call('ZADD', timers, now + lease, member)
limiting().timers_moved()
return 1
