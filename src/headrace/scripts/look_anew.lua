-- Look anew: what is said of a limit, or what an operator says over it, changed, and what waits for it hears of that.
-- include lanes
-- lazy    limiting look_anew look_at_limit look_at_all overrule
-- keys    timers limit_at=limit overrides_at=overrides
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

local function pause_until(ends) return {'paused', string.format('%.0f', ends)} end

-- Puts parts, {part, microseconds that it counts or 0, {field, value or '', ...}, ...}, over the numbers of a value
-- ('*': of the limit), and takes others away. What is over is taken away, too. Returns which parts there were.
local function overrule(name, value, parts, gone)
  local packed, had, nearest = redis.call('HGET', overrides_at .. name, value), {}, math.huge
  local kept = packed and cmsgpack.unpack(packed) or {}
  for part, one in pairs(kept) do
    -- The clock was set back.
    if one[1] > now + one[3] then
      one[1] = now + one[3]
      if part == 'paused' then one[2] = pause_until(one[1]) end
    end
    if one[1] > 0 and one[1] <= now then kept[part] = nil else had[part] = true end
  end
  for _, part in ipairs(gone) do kept[part] = nil end
  for n = 1, #parts, 3 do
    local ends = parts[n + 1] > 0 and now + parts[n + 1] or 0
    kept[parts[n]] = {ends, parts[n] == 'paused' and pause_until(ends) or parts[n + 2], parts[n + 1]}
  end
  for _, one in pairs(kept) do
    if one[1] > 0 then nearest = math.min(nearest, one[1]) end
  end
  if next(kept) then redis.call('HSET', overrides_at .. name, value, cmsgpack.pack(kept))
  else redis.call('HDEL', overrides_at .. name, value) end
  local count, timer = redis.call('HLEN', overrides_at .. name), 'limit:' .. name .. ':' .. value
  if count > 0 then redis.call('HSET', limit_at .. name, 'overrides', count)
  else redis.call('HDEL', limit_at .. name, 'overrides') end
  if nearest < math.huge then redis.call('ZADD', timers, nearest, timer) else redis.call('ZREM', timers, timer) end
  return had
end
