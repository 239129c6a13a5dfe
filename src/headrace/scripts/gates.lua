-- Gates: the gates that a script meets, what their limits say, how they are stored. A gate is a limit for one value.
-- include rates
-- lazy    limiting gate_of gate_of_all read_gates
-- keys    gate limit_at=limit overrides_at=overrides rewound newest=token
-- batch   numbers        {}  by limit: its numbers
-- batch   gates_met      {}  by name
-- batch   gates_unread   {}  those of them that are to be read
-- batch   gates_changed  {}  by name
-- Numbers with what is reckoned from them: microseconds between two starts, and how late a start may be made good.
local function reckoned(found)
  found.kind = found.rate and rate_of(found.shape or 'even')
  if not found.kind then return found end
  found.step, found.cell, found.changes = found.per / found.rate, found.per / 128, {}
  found.slack = math.max(10000, found.per / 100) + (found.burst or 0) * found.step
  for word in string.gmatch(found.zone or '', '%S+') do found.changes[#found.changes + 1] = tonumber(word) * 1000000 end
  return found
end

-- Numbers with an operator's over them, as long as these count: {part: {end or 0, {field, value or '', ...}}}.
local function overlaid(found, packed)
  local own = {}
  for field, value in pairs(found) do own[field] = value end
  for _, part in pairs(cmsgpack.unpack(packed)) do
    for n = 1, part[1] > 0 and part[1] <= now and 0 or #part[2], 2 do
      own[part[2][n]] = tonumber(part[2][n + 1]) or part[2][n + 1] ~= '' and part[2][n + 1] or nil
    end
  end
  return reckoned(own)
end

local function numbers_of(name)
  local found = batch.numbers[name]
  if found then return found end
  found = {}
  local flat = redis.call('HGETALL', limit_at .. name)
  for n = 1, #flat, 2 do found[flat[n]] = tonumber(flat[n + 1]) or flat[n + 1] end
  local over = found.overrides and redis.call('HGET', overrides_at .. name, '*')
  found = over and overlaid(found, over) or reckoned(found)
  -- All values are paused at one gate, '<limit>:*', so each of their own knows nothing of it.
  if found.by then
    found.all = {paused = found.paused}
    found.paused = nil
  end
  found.star = name .. ':*'
  batch.numbers[name] = found
  return found
end

-- The numbers of one gate of a limit, where those of its value, or of all of them, are others.
local function numbers_for(found, name, limit_name)
  if name == found.star then return found.all or {} end
  local value = string.sub(name, #limit_name + 2)
  local over = found.by and found.overrides and redis.call('HGET', overrides_at .. limit_name, value)
  return over and overlaid(found, over) or found
end

-- A gate is stored in 29 bytes, 9 more where a call was refused, and 12 for each of its cells.
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
  -- A faster rate opens sooner for the starts until now, too; a slower one counts from the next start.
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

-- A gate as it is where nothing is stored of it.
local function new_gate(name, limit_name)
  local found = batch.numbers[limit_name] or numbers_of(limit_name)
  if found.overrides or name == found.star then found = numbers_for(found, name, limit_name) end
  -- All its fields: a table that grows costs more.
  if found.shape then
    return {name = name, limit = found, next = 0, at = 0, held = 0, waits = false, till = 0, strikes = 0, cells = {}}
  end
  return {name = name, limit = found, next = 0, at = 0, held = 0, waits = false, till = 0, strikes = 0}
end

-- A gate by '<limit>:<value>'. It says what is stored once read_gates() has read all that were met since.
local function gate_of(name, limit_name)
  local met = batch.gates_met
  local g = met[name]
  if g then return g end
  g = new_gate(name, limit_name)
  met[name] = g
  local unread = batch.gates_unread
  unread[#unread + 1] = g
  return g
end

-- The same of what the caller has read of it, or false.
local function gate_of_text(name, limit_name, text)
  local g = batch.gates_met[name]
  if g then return g end
  g = new_gate(name, limit_name)
  batch.gates_met[name] = g
  if text and unpack_gate(g, text) then batch.gates_changed[name] = g end
  return g
end

-- The gate of all values of a limit that goes by one, while these are paused or else if it is asked for.
local function gate_of_all(name, open_too)
  local all = numbers_of(name).all
  return all and (all.paused or open_too) and gate_of(name .. ':*', name)
end

local function read_gates()
  local unread = batch.gates_unread
  if #unread == 0 then return end
  for first = 1, #unread, 1000 do
    local names = {}
    for n = first, math.min(first + 999, #unread) do names[n - first + 1] = gate .. unread[n].name end
    for n, text in ipairs(redis.call('MGET', unpack(names))) do
      local g = unread[first + n - 1]
      if text and unpack_gate(g, text) then batch.gates_changed[g.name] = g end
    end
  end
  batch.gates_unread = {}
end
