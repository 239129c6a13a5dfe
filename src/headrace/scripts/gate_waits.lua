-- Gate waits: what waits for a closed gate is behind it, and nowhere else; one that opens hands it over.
-- Stores the gates that changed. Included, never run alone.
-- include gate_opening
-- lazy    limiting
-- keys    timers behind
-- many    MSET
-- many    UNLINK
-- many    ZADD
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

-- Those of the changed ones that are open though something waits for them; what is behind them is handed over. That may
-- change further gates, and a table is not walked while it grows: so those that open are found first, and again until
-- none does.
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

-- Stores what changed; returns one of those that open at a time. A gate that says nothing more is not stored; one that
-- only remembers starts ends with them.
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
      -- Not more often than each 1.5 ms: by then more than one may start, and most of the shortest slack is left for
      -- the worker that claims them late.
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
