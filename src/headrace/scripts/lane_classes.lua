-- Lane classes: the class of a lane, the gates that its jobs pass, and where it stands in its line. A lane has the jobs
-- of one queue that pass the same gates, a class the lanes with the same limits.
-- include gate_opening
-- lazy    limiting class_named class_of passed_by value_gates
-- keys    classes class lane
-- batch   classes_met  {}   by name
-- batch   last_class   nil  the one that was asked for last
-- batch   classes_touched  {}  by class: {score of a job that came, if one did}
-- A class by '<queue>|<limits>': its gates, and the names of its limits that go by a value.
local function class_named(name)
  local c = batch.classes_met[name]
  if c then return c end
  local bar = string.find(name, '|', 1, true)
  c = {name = name, prefix = name .. '|', size = #name + 1, queue = string.sub(name, 1, bar - 1),
    limits = string.sub(name, bar + 1), gates = {}, bars = {}, valued = {}, names = {}}
  for word in string.gmatch(c.limits, '[^,]+') do
    if string.sub(word, -1) == '=' then
      word = string.sub(word, 1, -2)
      c.valued[#c.valued + 1] = word
      c.bars[#c.bars + 1] = gate_of_all(word) or nil
    else
      c.gates[#c.gates + 1] = gate_of(word .. ':', word)
    end
    c.names[#c.names + 1] = word
    c.strict = c.strict or numbers_of(word).full
  end
  if #c.valued == 1 then
    c.word, c.lead = c.valued[1], c.valued[1] .. ':'
    local limit = numbers_of(c.word)
    -- The limit, where all its gates have the same numbers, and remember no more than a time and a count.
    c.lone = #c.names == 1 and not limit.overrides and not limit.shape and (limit.most or 1) >= 1 and limit
  end
  read_gates()
  batch.classes_met[name] = c
  return c
end

-- The class of a lane, or of a class.
local function class_of(unit)
  local last = batch.last_class
  if last and string.sub(unit, 1, last.size) == last.prefix then return last end
  local bar = string.find(unit, '|', 1, true)
  last = class_named(string.sub(unit, 1, (string.find(unit, '|', bar + 1, true) or 0) - 1))
  batch.last_class = last
  return last
end

-- The closed gate of a class, if one is: of its own, or of all values while these are paused.
local function class_closed(c)
  return first_closed(c.gates) or first_closed(c.bars)
end

-- The gates of a lane's values, of a name or a text that has it until there; the caller has them read.
local function value_gates(c, name, stop)
  if c.lead then return {gate_of(c.lead .. string.sub(name, c.size + 1, stop), c.word)} end
  local valued, found = c.valued, {}
  if #valued == 0 then return found end
  for value in string.gmatch(string.sub(name, c.size + 1, stop) .. '|', '(.-)|') do
    local word = valued[#found + 1]
    if word then found[#found + 1] = gate_of(word .. ':' .. value, word) end
  end
  return found
end

-- The gates that the jobs of a lane pass: those of its class, and those of its values.
local function passed_by(name)
  local c = class_of(name)
  local own = value_gates(c, name)
  read_gates()
  return {c.gates, own}
end

-- In a class, lanes that are behind a gate have their turn above this.
local PARKED = 2 ^ 50

-- How many jobs wait in its lanes, their turn, and its pace: where it stands in its line, by the time of its jobs.
local function read_class(c)
  if not c.turn then
    local said = redis.call('HMGET', classes .. c.queue, c.limits, c.limits .. '|')
    local turn, pace = string.match(said[2] or '', '^(%S+) (%S+)$')
    c.count, c.turn, c.pace = tonumber(said[1] or 0), tonumber(turn or 0), tonumber(pace)
  end
  return c
end

local function first_lane(c)
  return redis.call('ZRANGEBYSCORE', class .. c.name, '-inf', '(' .. PARKED, 'LIMIT', 0, 1)[1]
end

-- Where it is to stand: as old as the job whose turn it is, or older where its jobs wait longer than those of its line.
-- So a new value that has its turn does not keep old jobs waiting behind all others of the queue.
local function class_score(c, first)
  local head = tonumber(redis.call('ZRANGE', lane .. first, 0, 0, 'WITHSCORES')[2] or now)
  return math.min(head, read_class(c).pace or head)
end

-- It is to stand where it belongs when the script ends; by a job with this score if there is one.
local function touch_class(c, score)
  local touched = batch.classes_touched
  local t = touched[c] or {}
  touched[c] = t
  if score then t.score = math.min(score, t.score or score) end
end

local function count_waiting(c, by)
  read_class(c)
  c.count = c.count + by
  touch_class(c)
end
