-- Limit release: a program lets go of a gate; what waits for it hears of it.
-- include held_gates
-- keys    timers
-- removes first timers
-- arg     limit   text
-- arg     passed  text    the gate, <limit>:<value>
-- arg     holder  text
-- arg     spent   int     units that it cost beyond what was charged, or, below 0, less
-- arg     since   int     when it passed the gate
-- arg     unused  int     cost of a start that did not come about: it is given back
-- arg     refused int     microseconds for which the other side closes the gate; 0: as is usual; -1: it does not
-- route   home
-- return  1, or 0 where its lease was over
if redis.call('ZREM', timers, 'hold:' .. passed .. '|' .. holder) == 0 then return 0 end
local l = limiting()
local one = l.gate_of(passed, limit)
l.read_gates()
if spent ~= 0 then l.spend_more(one, spent, since) end
if refused >= 0 then l.close_gate(one, refused) end
l.release_gate(one, unused, 1, math.min(unused, 1), since)
l.timers_moved()
return 1
