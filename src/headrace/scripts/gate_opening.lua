-- Gate opening: whether gates are open and when closed ones open; jobs that start, end or are refused count at them.
-- include gates
-- lazy    limiting cost_of closed_until too_dear charge_all release_gate spend_more
-- What a start costs, as its record says.
local function cost_of(text)
  local cost = tonumber(text or 1) or 1
  return cost >= 1 and cost <= 1e9 and math.floor(cost) or 1
end

-- No job may cost more than there ever is, also where the number became smaller since it was enqueued.
local function units_of(limit, cost)
  return limit.shape and math.min(cost, limit.rate) or cost
end

-- When it opens by itself for a job of this cost: false, it is open; infinity: when a job of it ends, or a pause.
local function closed_until(g, cost)
  local limit, opens = g.limit, g.till
  local kind = limit.kind
  if limit.paused then return limit.paused > 0 and limit.paused or math.huge end
  if limit.most and g.held >= limit.most then return math.huge end
  if kind then
    local next_at = kind.opens(g, limit, limit.shape and units_of(limit, cost or 1))
    if next_at > opens then opens = next_at end
  end
  return opens > now and opens
end

local function first_closed(list)
  for n = 1, #list do
    if closed_until(list[n]) then return list[n] end
  end
end

-- How many jobs of cost 1 may start before these are to be looked at again; 0: one of them is closed.
local function free_starts(list)
  local free = math.huge
  for n = 1, #list do
    local g = list[n]
    local limit = g.limit
    if closed_until(g) then return 0 end
    if limit.kind then free = math.min(free, math.max(1, limit.kind.free(g, limit))) end
    if limit.most then free = math.min(free, limit.most - g.held) end
  end
  return free
end

-- What is open, but not for this cost, closes until that fits, or cheap jobs keep it waiting. Whether there was any.
local function too_dear(lists, cost)
  local found = false
  for _, list in ipairs(lists) do
    for _, g in ipairs(list) do
      local opens = closed_until(g, cost)
      if opens then g.next, found, batch.gates_changed[g.name] = math.max(g.next, opens), true, g end
    end
  end
  return found
end

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
-- which were charged at `since`. One that was fine ends a series of refusals.
local function release_gate(g, cost, count, unused, since, fine)
  local held = g.held - count
  g.held = held > 0 and held or 0
  if fine and g.strikes > 0 and g.till <= now then g.till, g.strikes = 0, 0 end
  if unused > 0 and g.limit.kind then g.limit.kind.refund(g, g.limit, unused * units_of(g.limit, cost), since) end
  batch.gates_changed[g.name] = g
end

-- The other side has refused a call: closed for so long; 0: for a second, twice as long each time in a row, up to five
-- minutes. Returns whether it was not closed so before.
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
