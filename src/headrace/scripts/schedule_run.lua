-- Schedule run: jobs of a schedule come to be now, for given ticks or this moment, as an overlap policy allows.
-- include tick
-- keys    seen=sender:<sender> plan=schedule
-- arg     sender   text    names this request: the same again makes no job twice
-- arg     name     text
-- arg     ticks    packed  nominal times, at most 500; none: this moment
-- arg     overlap  text    instead of the schedule's own policy, or empty
-- arg     again    int     1: also ticks that ran before
-- route   home
-- return  {missing} | {ok, ran | skipped | ran before, id, ...}: two for each tick
if redis.call('EXISTS', plan .. name) == 0 then return {'missing'} end
local told = redis.call('GET', seen)
if told then return cmsgpack.unpack(told) end
-- This write comes first: where memory is full nothing is made.
redis.call('SET', seen, '', 'EX', 600)
local answer, before, work = {'ok'}, {}, redis.call('HMGET', plan .. name, unpack(WORK))
if again == 0 and #ticks > 0 then
  for _, row in ipairs(redis.call('LRANGE', history .. name, 0, -1)) do
    local one = cmsgpack.unpack(row)
    if one[3] == 'ran' then before[one[1]] = one[4] end
  end
end
-- Further jobs of one tick differ in one digit of their ids.
local function start(tick, nth, most)
  local what, id
  repeat
    what, id = start_tick(name, tick, work, overlap, nth)
    nth = nth + 1
  until what ~= 'twice' or nth > most
  return what, id
end

local moments, by_hand, ran = ticks, #ticks == 0, 0
if by_hand then moments = {math.floor(now / 5000) * 5000} end
for _, tick in ipairs(moments) do
  local what, id = 'ran before', before[tick]
  if not id then
    what, id = start(tick, 0, (by_hand or again == 1) and 31 or 0)
    if what == 'twice' then
      what = 'ran before'
    else
      note_tick(name, tick, what, id)
      ran = ran + (what == 'ran' and 1 or 0)
    end
  end
  answer[#answer + 1], answer[#answer + 2] = what, id
end
if ran > 0 then redis.call('HINCRBY', plan .. name, 'runs', ran) end
redis.call('SET', seen, cmsgpack.pack(answer), 'EX', 600)
return answer
