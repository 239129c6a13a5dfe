-- Rates: when a gate's rate lets the next job start, by the shape of it.
-- Of each shape: when it opens; a start and one that is taken back; how many of cost 1 may start now, where it is open;
-- when nothing is left of it. What a gate remembers of its rate: `next`, before which none starts; `at`, when the last
-- one did; and `cells`, {time, units, ...}, which spread starts need not.
-- lazy    limiting
-- batch   rates  {}  by shape: its functions, made where a script meets the shape
-- Evenly spread (GCRA): a start that comes late is made good, up to the slack of its limit.
local function even_rate()
  return {
    opens = function(g) return g.next end,
    charge = function(g, limit, units) g.next = math.max(g.next, now - limit.slack) + units * limit.step end,
    -- Only of the last start: what others have since waited for is past.
    refund = function(g, limit, units, time)
      if time == g.at then g.next = g.next - units * limit.step end
    end,
    free = function(g, limit) return math.floor((now - math.max(g.next, now - limit.slack)) / limit.step) + 1 end,
    ends = function(g, limit) return g.next + limit.slack end,
  }
end

-- This many in any window: starts are counted in cells of a 128th of it, until the last of a cell has left the window.
local function window_rate()
  local function used(g)
    local sum = 0
    for n = 2, #g.cells, 2 do sum = sum + g.cells[n] end
    return sum
  end
  return {
    opens = function(g, limit, units)
      local gone, opens = 0, g.next
      while g.cells[1] and g.cells[1] + limit.cell + limit.per <= now do
        table.remove(g.cells, 1)
        table.remove(g.cells, 1)
      end
      local sum = used(g)
      for n = 1, #g.cells, 2 do
        if sum - gone + units <= limit.rate then break end
        gone, opens = gone + g.cells[n + 1], math.max(opens, g.cells[n] + limit.cell + limit.per)
      end
      return opens
    end,
    charge = function(g, limit, units)
      local last = #g.cells - 1
      if last < 0 or g.cells[last] + limit.cell <= now then
        last = last + 2
        g.cells[last], g.cells[last + 1] = now, 0
      end
      g.cells[last + 1] = g.cells[last + 1] + units
    end,
    refund = function(g, limit, units, time)
      for n = 1, #g.cells, 2 do
        if g.cells[n] <= time and time < g.cells[n] + limit.cell then
          g.cells[n + 1] = math.max(0, g.cells[n + 1] - units)
        end
      end
    end,
    set_back = function(g, _, by)
      for n = 1, #g.cells, 2 do g.cells[n] = g.cells[n] - by end
    end,
    free = function(g, limit) return limit.rate - used(g) end,
    ends = function(g, limit) return #g.cells > 0 and g.cells[#g.cells - 1] + limit.cell + limit.per or 0 end,
  }
end

-- This many until the clock begins anew, in the limit's zone, whose changes, {first, offset, ...}, say from when on
-- that is so far from UTC. What is up to an hour follows time, what is longer the clock on the wall. Returns which
-- period it is, by its local time, and when it ends.
local function period(limit, time)
  local zone, offset, change, later = limit.changes, 0, math.huge, 0
  for n = 1, #zone, 2 do
    if zone[n] > time then
      change, later = zone[n], zone[n + 1]
      break
    end
    offset = zone[n + 1]
  end
  local per = limit.per
  -- The first of January 1970 was a Thursday.
  local shift = per % 604800000000 == 0 and 259200000000 or 0
  local first = math.floor((time + offset + shift) / per) * per - shift
  local short = per <= 3600000000
  local ends = first + per - offset
  if change < ends then ends = short and change or math.max(change, first + per - later) end
  return short and first - offset or first, ends
end

local function clock_rate()
  return {
    opens = function(g, limit, units)
      local first, ends = period(limit, now)
      if g.cells[1] and g.cells[1] < first then g.cells, g.next = {}, 0 end
      local full = g.cells[1] and g.cells[2] + units > limit.rate
      return math.min(ends, full and ends or g.next)
    end,
    charge = function(g, limit, units)
      local first = period(limit, now)
      if not g.cells[1] or g.cells[1] < first then g.cells = {first, 0} end
      g.cells[2] = g.cells[2] + units
    end,
    refund = function(g, limit, units, time)
      if g.cells[1] == period(limit, time) then g.cells[2] = math.max(0, g.cells[2] - units) end
    end,
    free = function(g, limit) return limit.rate - (g.cells[2] or 0) end,
    -- No quota twice, and none lost for more than a period: what was used counts to the end of the next one at most.
    set_back = function(g, limit)
      if g.cells[1] then g.cells[1] = math.min(g.cells[1], period(limit, now) + limit.per) end
    end,
    ends = function(g, limit)
      local _, ends = period(limit, now)
      return g.cells[1] and ends or 0
    end,
  }
end

-- The functions of a shape; nil: newer code knows it.
local function rate_of(shape)
  local found = batch.rates[shape]
  if found then return found end
  if shape == 'even' then found = even_rate()
  elseif shape == 'window' then found = window_rate()
  elseif shape == 'clock' then found = clock_rate() end
  batch.rates[shape] = found
  return found
end
