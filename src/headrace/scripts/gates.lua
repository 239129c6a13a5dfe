-- Gates: the gates that a script meets, and what is stored of them. A gate is a limit for one value.
-- Included, never run alone.
-- include gate_numbers gate_record
-- lazy    limiting gate_of gate_of_all read_gates
-- keys    gate
-- batch   gates_met      {}  by name
-- batch   gates_unread   {}  those of them that are to be read
-- batch   gates_changed  {}  by name
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
