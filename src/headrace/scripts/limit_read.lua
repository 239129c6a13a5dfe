-- Limit read: what is said of limits or values, how many jobs run and wait, when the next may start. Changes nothing.
-- include lanes
-- keys    limit_names=limits limited classes class lane limit_at=limit overrides_at=overrides
-- arg     names        packed  of limits; none: a page of all, by name
-- arg     after        text    the page begins behind this name
-- arg     limit        int     most limits of a page, or most values that are told, at most 500
-- arg     value        text    of the limits that are named; '*': all of it
-- arg     values       int     1: also values of these limits for which an operator said something, or whose jobs wait
-- route   home
-- return  {now, how many limits there are, {{name, value, {field, value, ...}, parts for all, parts of the value,
--         running or -1, 0: open | -1: a job or pause must end | opens, waiting}, ...}, {task or queue, its limits,
--         ...} where limits are named}
-- Lanes of a class that are counted, and that are looked at to see whether one is open.
local LANES, FIRST, l, rows, counted = 1000, 20, limiting(), {}, {}

-- Jobs of a class that wait for a value, of several values those in its first lanes.
local function waiting_in(c, name, at, value)
  if value == '*' then return tonumber(redis.call('HGET', classes .. c.queue, c.limits) or 0) end
  if #c.valued == 1 then return redis.call('ZCARD', lane .. c.name .. '|' .. value) end
  local counts = counted[c.name .. name] or {}
  if not counted[c.name .. name] then
    for _, one in ipairs(redis.call('ZRANGE', class .. c.name, 0, LANES - 1)) do
      local met = l.value_gates(c, one)[at].name
      counts[met] = (counts[met] or 0) + redis.call('ZCARD', lane .. one)
    end
    counted[c.name .. name] = counts
  end
  return counts[name .. ':' .. value] or 0
end

-- When the first of some values opens for which jobs wait: false, one is open.
local function first_opening(list)
  local soonest = math.huge
  l.read_gates()
  for _, one in ipairs(list) do soonest = math.min(soonest, l.closed_until(one) or 0) end
  return #list > 0 and soonest > 0 and soonest
end

-- The classes with a limit in which jobs wait, and the place of its value in these.
local function each_class(name, handle)
  for _, unit in ipairs(redis.call('SMEMBERS', waiting .. name)) do
    local c, at = l.class_named(unit), 0
    for n, word in ipairs(c.valued) do
      if word == name then at = n end
    end
    handle(c, at)
  end
end

local function tell(name, value)
  local fields, waits, some = redis.call('HGETALL', limit_at .. name), 0, {}
  if #fields == 0 then return end
  each_class(name, function(c, at)
    if at > 0 or value == '*' then waits = waits + waiting_in(c, name, at, value) end
    for _, one in ipairs(at > 0 and value == '*' and redis.call('ZRANGE', class .. c.name, 0, FIRST - 1) or {}) do
      some[#some + 1] = l.value_gates(c, one)[at]
    end
  end)
  local whole = value == '*' and l.gate_of_all(name, true)
  local one = whole or l.gate_of(name .. ':' .. (value == '*' and '' or value), name)
  local bar = not whole and value ~= '*' and l.gate_of_all(name)
  l.read_gates()
  local opens = l.closed_until(one) or first_opening(some)
  if bar then opens = math.max(opens or 0, l.closed_until(bar) or 0) end
  rows[#rows + 1] = {name, value, fields, redis.call('HGET', overrides_at .. name, '*') or '',
    value ~= '*' and redis.call('HGET', overrides_at .. name, value) or '', whole and -1 or one.held,
    opens == math.huge and -1 or opens and string.format('%.0f', opens) or 0, waits}
end

local function tell_values(name)
  local met, found = {['*'] = true}, {}
  local function meet(value)
    if not met[value] and #found < limit then found[#found + 1] = value end
    met[value] = true
  end
  local over = redis.call('HSCAN', overrides_at .. name, 0, 'COUNT', limit)[2]
  for n = 1, #over, 2 do meet(over[n]) end
  each_class(name, function(c, at)
    for _, one in ipairs(at > 0 and redis.call('ZRANGE', class .. c.name, 0, LANES - 1) or {}) do
      meet(string.sub(l.value_gates(c, one)[at].name, #name + 2))
    end
  end)
  for _, value in ipairs(found) do tell(name, value) end
end

local found = names
if #names == 0 then
  found = redis.call('ZRANGE', limit_names, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, limit)
end
for _, name in ipairs(found) do
  tell(name, value)
  if values == 1 then tell_values(name) end
end
return {now, redis.call('ZCARD', limit_names), rows,
  redis.call('EXISTS', limited) == 1 and #names > 0 and redis.call('HGETALL', limited) or {}}
