-- Limit timers: gates that may open, holds and an operator's words that end, lanes that are looked at anew.
-- include look_anew sort_anew gate_opening
-- lazy    limiting run_timers keep_lease
-- keys    timers
local function gate_named(name)
  return gate_of(name, string.match(name, '^[^:]*'))
end

-- Lanes of a class, a piece from this cursor on.
local function look_at_lanes(cursor, unit)
  local c = class_named(unit)
  local found, met = redis.call('ZSCAN', class .. unit, cursor, 'COUNT', 500), {}
  for n = 1, #found[2], 2 do
    if tonumber(found[2][n + 1]) >= PARKED then met[#met + 1] = value_gates(c, found[2][n]) end
  end
  read_gates()
  met[#met + 1] = c.gates
  for _, list in ipairs(met) do
    for _, one in ipairs(list) do batch.gates_changed[one.name] = one end
  end
  if found[1] ~= '0' then redis.call('ZADD', timers, now, 'lanes:' .. found[1] .. ':' .. unit) end
end

-- No hold ends later than its lease, which its name says, from now.
local function keep_lease(hold)
  local lease = string.match(hold, '^hold:.*|.*%.(%d+)$')
  if lease then redis.call('ZADD', timers, 'LT', now + lease, hold) end
end

-- An operator's words of a limit, or of one of its values, may be over.
local function look_at_words(name)
  local limit_name, value = string.match(name, '^([^:]*):(.*)$')
  overrule(limit_name, value, {}, {})
  look_at_limit(limit_name, value)
end

-- The clock was set back: what has a time, a piece from this cursor on.
local function look_at_times(cursor, met)
  local found = redis.call('ZSCAN', timers, cursor, 'COUNT', 500)
  for n = 1, #found[2], 2 do
    local kind, name = string.match(found[2][n], '^(%l+):(.*)$')
    if kind == 'gate' then met[#met + 1] = gate_named(name)
    elseif kind == 'hold' then keep_lease(found[2][n])
    elseif kind == 'limit' then look_at_words(name) end
  end
  if found[1] ~= '0' then redis.call('ZADD', timers, now, 'clock:' .. found[1]) end
end

-- What is due, this many at most. Returns how many were.
local function run_timers(most)
  local due, met, over = redis.call('ZRANGEBYSCORE', timers, '-inf', now, 'LIMIT', 0, most), {}, {}
  timers_moved()
  if #due == 0 then return 0 end
  redis.call('ZREM', timers, unpack(due))
  for _, one in ipairs(due) do
    local kind, name = string.match(one, '^(%l+):(.*)$')
    if kind == 'gate' then met[#met + 1] = gate_named(name)
    elseif kind == 'hold' then over[#over + 1] = gate_named(string.match(name, '^[^|]*'))
    elseif kind == 'clock' then look_at_times(name, met)
    elseif kind == 'lanes' then look_at_lanes(string.match(name, '^(%d+):(.*)$'))
    elseif kind == 'limit' then look_at_words(name)
    elseif kind == 'sort' or kind == 'jobs' then sort_piece(kind, string.match(name, '^(%d+):(.*)$')) end
  end
  read_gates()
  -- A program that held a limit was not heard of for its lease.
  for _, one in ipairs(over) do release_gate(one, 1, 1, 0) end
  for _, one in ipairs(met) do batch.gates_changed[one.name] = one end
  return #due
end
