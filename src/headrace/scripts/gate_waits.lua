-- Gate waits: what waits for a closed gate is behind it; one that opens hands it over. Stores gates that changed.
-- include gate_opening
-- lazy    limiting
-- keys    timers behind
-- A lane or a class waits for it.
local function park(unit, g)
  redis.call('SADD', behind .. g.name, unit)
  g.waits = true
  batch.gates_changed[g.name] = g
end

-- A lane or a class has no jobs any more, so it waits for none of these. Else its gate stays, and opens for nothing.
local function leave_gates(unit, list)
  for _, g in ipairs(list) do
    if g.waits and redis.call('SREM', behind .. g.name, unit) == 1 then
      g.waits = redis.call('EXISTS', behind .. g.name) == 1
      batch.gates_changed[g.name] = g
    end
  end
end

-- Changed ones that are open hand over what waits for them. That may change further gates, and a table is not walked
-- while it grows: so those that open are found first, and again until none does.
local function open_gates(handle)
  repeat
    local opened = {}
    for _, g in pairs(batch.gates_changed) do
      if g.waits and not closed_until(g) then opened[#opened + 1] = g end
    end
    for _, g in ipairs(opened) do
      g.waits = false
      for _, unit in ipairs(redis.call('SMEMBERS', behind .. g.name)) do handle(unit) end
      redis.call('UNLINK', behind .. g.name)
    end
  until #opened == 0
end

-- Stores what changed, as long as it says something; returns one of the gates that open at a time.
local function store_gates()
  local stays, size, ends, times, timed = {}, 0, {}, {}, nil
  for name, g in pairs(batch.gates_changed) do
    if g.held > 0 or g.waits then
      stays[size + 1] = gate .. name
      stays[size + 2] = pack_gate(g)
      size = size + 2
    else
      local kind = g.limit.kind
      local remembers = math.max(kind and kind.ends(g, g.limit) or 0, g.next, g.till + g.strikes * 60000000) - now
      if remembers > 0 then redis.call('SET', gate .. name, pack_gate(g), 'PX', math.ceil(remembers / 1000) + 1000)
      else ends[#ends + 1] = gate .. name end
    end
    local opens = g.waits and closed_until(g)
    if opens and opens < math.huge then
      -- Not more often than each 1.5 ms: by then several may start, and late claims have most of the slack.
      times[#times + 1], times[#times + 2] = string.format('%.0f', math.max(opens, now + 1500)), 'gate:' .. name
      timed = name
    end
  end
  batch.gates_changed = {}
  mset_all(stays)
  unlink_all(ends)
  zadd_all(timers, times)
  return timed
end
