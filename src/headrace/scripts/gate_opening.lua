-- Gate opening: whether gates are open, and when those that are closed open. Included, never run alone.
-- include gates
-- lazy    limiting cost_of closed_until
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

-- The first closed one of some.
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

-- What is open, but not for a job of this cost, closes until that fits, so that cheap ones do not keep it waiting for
-- ever. Whether there was any of these.
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
