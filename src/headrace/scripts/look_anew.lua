-- Look anew: what is said of a limit changed, and what waits for it hears of that. Included, never run alone.
-- include lanes
-- lazy    limiting look_anew look_at_limit look_at_all
-- keys    timers
-- The numbers of a limit changed: its classes are looked at now, their lanes a piece at a time.
local function look_anew(name)
  for _, unit in ipairs(redis.call('SMEMBERS', waiting .. name)) do
    redis.call('ZADD', timers, now, 'lanes:0:' .. unit)
    timers_moved()
    wake_up(class_named(unit).queue)
  end
end

-- What an operator said of a limit, or of one of its values, changed or is over.
local function look_at_limit(name, value)
  if value == '*' then look_anew(name) end
  local one = gate_of(name .. ':' .. (value == '*' and not gate_of_all(name, true) and '' or value), name)
  read_gates()
  batch.gates_changed[one.name] = one
  local unit = redis.call('SRANDMEMBER', waiting .. name)
  if unit then wake_up(class_named(unit).queue) end
  timers_moved()
end

-- A limit is gone, or goes by other values: its gates open for what waits behind them.
local function look_at_all(name)
  look_anew(name)
  local own, all = gate_of(name .. ':', name), gate_of(name .. ':*', name)
  read_gates()
  batch.gates_changed[own.name], batch.gates_changed[all.name] = own, all
end
