-- Limit take: a start on another shard passes all gates of its job, or none, and holds them for a lease at most.
-- include limit_timers limited_values
-- keys    timers
-- removes first timers
-- arg     task    text
-- arg     queue   text
-- arg     args    text   the stored arguments, which have values of limits
-- arg     by_key  text   the job's key
-- arg     cost    int    of how many starts it uses up the rates
-- arg     holder  text   names this start, and ends with a point and its lease: the same again means a lost reply
-- arg     lease   int    microseconds
-- route   home
-- return  {held | closed, now, when it opens or 0, {gate, ...}}
local l = limiting()
l.run_timers(64)
local rule = l.limits_of(task, queue)
if not rule then return {'held', now, 0, {}} end
local values, names, list, opens = {}, {}, {}, false
local given = string.match(l.lane_of(queue, rule, args, by_key), '^[^|]*|[^|]*(.*)$')
for value in string.gmatch(given, '|([^|]*)') do values[#values + 1] = value end
local nth, bars = 0, {}
for name, by in string.gmatch(rule[1], '([^,=]+)(=?)') do
  nth = nth + (by == '=' and 1 or 0)
  names[#names + 1] = name .. ':' .. (by == '=' and values[nth] or '')
  list[#list + 1] = l.gate_of(names[#names], name)
  bars[#bars + 1] = l.gate_of_all(name) or nil
end
if redis.call('ZSCORE', timers, 'hold:' .. names[1] .. '|' .. holder) then return {'held', now, 0, names} end
l.read_gates()
for _, gates in ipairs({list, bars}) do
  for _, one in ipairs(gates) do
    local at = l.closed_until(one)
    if at and (not opens or at > opens) then opens = at end
  end
end
if not opens and l.too_dear({list}, cost) then
  for _, one in ipairs(list) do opens = math.max(opens or 0, l.closed_until(one) or 0) end
end
if opens then
  l.timers_moved()
  return {'closed', now, opens < math.huge and string.format('%.0f', opens) or 0, {}}
end
l.charge_all(list, cost)
for _, name in ipairs(names) do redis.call('ZADD', timers, now + lease, 'hold:' .. name .. '|' .. holder) end
return {'held', now, 0, names}
