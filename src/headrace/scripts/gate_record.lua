-- Gate record: how a gate is stored: 29 bytes, 9 more where a call was refused, and 12 for each of its cells.
-- Included, never run alone.
-- lazy    limiting
-- keys    rewound newest=token
-- The shape of the rate by which it counted: cells mean nothing to another one.
local SHAPES = {window = 1, clock = 2}

local function pack_gate(g)
  local shape = SHAPES[g.limit.shape] or 0
  local refused = g.till > 0 or g.strikes > 0
  local text = struct.pack('<dddI4B', g.next, g.at, g.limit.step or 0, g.held,
    (g.waits and 1 or 0) + 2 * shape + (refused and 8 or 0))
  if shape == 0 and not refused then return text end
  local parts = {text}
  if refused then parts[2] = struct.pack('<dB', g.till, g.strikes) end
  for n = 1, shape == 0 and 0 or #g.cells, 2 do
    parts[#parts + 1] = struct.pack('<dI4', g.cells[n], math.min(g.cells[n + 1], 4e9))
  end
  return table.concat(parts)
end

-- Returns whether the clock was set back since its last start. It stays closed as long as it was to be then, no longer.
local function unpack_gate(g, text)
  local step, flags
  g.next, g.at, step, g.held, flags = struct.unpack('<dddI4B', text)
  local first = 30
  if flags >= 8 then
    g.till, g.strikes, first = struct.unpack('<dB', text, first)
    flags = flags - 8
  end
  local limit, waits = g.limit, flags % 2
  local shape, mine = SHAPES[limit.shape] or 0, limit.step or 0
  local same = flags - waits == 2 * shape
  g.waits = waits == 1
  for at = first, same and #text or 0, 12 do
    local n = #g.cells
    g.cells[n + 1], g.cells[n + 2] = struct.unpack('<dI4', text, at)
  end
  -- Of a faster rate that is due sooner, too, for which the starts until now have it closed; a slower one counts from
  -- the next start.
  if step ~= mine then
    g.next = same and shape == 0 and step > 0 and math.min(g.next, g.at + (g.next - g.at) * mine / step) or 0
  end
  local by = g.at - now
  if by <= 0 then return false end
  g.next, g.till, g.at = g.next - by, g.till - by, now
  if g.limit.kind and g.limit.kind.set_back then g.limit.kind.set_back(g, g.limit, by) end
  -- From when on starts were charged cannot be told of those until now: their permits do not come back.
  redis.call('SET', rewound, redis.call('GET', newest) or 0, 'EX', 86400)
  return true
end
