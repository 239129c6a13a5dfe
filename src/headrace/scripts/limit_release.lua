-- Limit release: a program lets go of a gate; what waits for it hears of it.
-- include lanes
-- clock   now
-- commit  batch
-- key     timers  zset  timers
-- removes first timers
-- arg     limit   text
-- arg     passed  text    the gate, <limit>:<value>
-- arg     holder  text
-- return  1, or 0 where its lease was over
if redis.call('ZREM', timers, 'hold:' .. passed .. '|' .. holder) == 0 then return 0 end
local g = limiting().gates()
local one = g.of(passed, limit)
g.load()
g.release(one, 1, 1, 0)
limiting().lanes().timed = true
return 1
