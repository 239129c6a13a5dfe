-- Limit release: a program lets go of a gate; what waits for it hears of it.
-- include lanes gate_starts
-- keys    timers
-- removes first timers
-- arg     limit   text
-- arg     passed  text    the gate, <limit>:<value>
-- arg     holder  text
-- route   home
-- return  1, or 0 where its lease was over
if redis.call('ZREM', timers, 'hold:' .. passed .. '|' .. holder) == 0 then return 0 end
local l = limiting()
local one = l.gate_of(passed, limit)
l.read_gates()
l.release_gate(one, 1, 1, 0)
l.timers_moved()
return 1
