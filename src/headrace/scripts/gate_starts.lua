-- Gate starts: jobs that start, end or are refused count at their gates. Included, never run alone.
-- include gate_opening
-- lazy    limiting charge_all release_gate spend_more
-- A job starts.
local function charge_all(list, cost)
  local changed = batch.gates_changed
  for n = 1, #list do
    local g = list[n]
    local limit = g.limit
    g.held = g.held + 1
    if limit.kind then limit.kind.charge(g, limit, limit.shape and units_of(limit, cost) or cost) end
    g.at = now
    changed[g.name] = g
  end
end

-- More than a job cost, or, below 0, less: it has started at `since`.
local function spend_more(g, units, since)
  local kind = g.limit.kind
  if kind and units < 0 and g.limit.shape then kind.refund(g, g.limit, -units, since)
  elseif kind then kind.charge(g, g.limit, units_of(g.limit, units)) end
  g.at = now
  batch.gates_changed[g.name] = g
end

-- This many jobs of this cost ended, or came back without having started: then their permits come back, too, this many,
-- which were charged at `since`.
-- One that was fine ends a series of refusals.
local function release_gate(g, cost, count, unused, since, fine)
  local held = g.held - count
  g.held = held > 0 and held or 0
  if fine and g.strikes > 0 and g.till <= now then g.till, g.strikes = 0, 0 end
  if unused > 0 and g.limit.kind then g.limit.kind.refund(g, g.limit, unused * units_of(g.limit, cost), since) end
  batch.gates_changed[g.name] = g
end

-- The other side has refused a call: closed for so long; 0: for a second, twice as long each time in a row, up to five
-- minutes.
-- Returns whether it was not closed so before.
local function close_refused(g, delay)
  local closed = g.till > now
  -- Those that ran beside one that was refused were refused with it.
  if delay == 0 and closed then return false end
  if delay == 0 then
    delay = math.min(2 ^ g.strikes, 300) * 1000000
    g.strikes = math.min(g.strikes + 1, 9)
  end
  g.till, g.at = math.max(g.till, now + delay), now
  batch.gates_changed[g.name] = g
  return not closed
end
