-- Limit hold: a program passes a gate as a job would, and holds it until it lets go or its lease is over.
-- A hold is an entry of timers: hold:<gate>|<holder>, scored by the end of its lease.
-- include limit_timers declare
-- keys    numbers=limit:<limit> timers
-- removes first timers
-- arg     value      text    '*': the limit goes by none
-- arg     holder     text    names this hold, and ends with a point and its lease: the same again means a lost reply
-- arg     lease      int     microseconds
-- arg     declared   packed  {field, value, ...} of the caller's code, or {}, for a store that does not know it
-- route   home
-- return  {unknown | shared: it has no values | values: one must be given | held | closed, now, when it opens or 0}
if redis.call('EXISTS', numbers) == 0 then
  if #declared == 0 then return {'unknown', now, 0} end
  declare_limit(limit, declared)
end
local by = redis.call('HEXISTS', numbers, 'by') == 1
if by ~= (value ~= '*') then return {by and 'values' or 'shared', now, 0} end
local l, name = limiting(), limit .. ':' .. (by and value or '')
local member = 'hold:' .. name .. '|' .. holder
-- Holds whose leases are over let go here, too: there may be no worker.
l.run_timers(64)
if redis.call('ZSCORE', timers, member) then return {'held', now, 0} end
local one, bar = l.gate_of(name, limit), l.gate_of_all(limit)
l.read_gates()
local opens = l.closed_until(one) or bar and l.closed_until(bar)
if opens then
  -- The clock may have been set back, and no worker there that sees it.
  for _, far in ipairs(redis.call('ZRANGEBYSCORE', timers, now + lease, '+inf', 'LIMIT', 0, 64)) do
    l.keep_lease(far)
  end
  l.timers_moved()
  return {'closed', now, opens < math.huge and string.format('%.0f', opens) or 0}
end
l.charge_all({one}, 1)
redis.call('ZADD', timers, now + lease, member)
return {'held', now, 0}
