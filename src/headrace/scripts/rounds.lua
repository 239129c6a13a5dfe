-- Rounds: jobs of the lanes of a class start, by turns.
-- include lane_turn
-- lazy    limiting
-- Lanes that one round reads.
local LANES = 128

-- What the round has left of the lanes that had a turn: jobs that did not start, and their turns.
local function store_round(s, rows, last)
  local changed, empty = {}, {}
  for n = 1, last do
    local row = rows[n]
    if row.state ~= 'stored' then
      local jobs, rest = row.jobs or {}, nil
      for m = row.at, #jobs, 2 do
        rest = rest or {}
        rest[#rest + 1], rest[#rest + 2] = jobs[m + 1], jobs[m]
      end
      if rest then zadd_all(lane .. row.name, rest) end
      if row.state == 'empty' then
        empty[#empty + 1] = row.name
      else
        changed[#changed + 1], changed[#changed + 2] = row.turn + (row.state == 'parked' and PARKED or 0), row.name
      end
      row.state = 'stored'
    end
  end
  -- Now: lanes of other classes may have the same gates.
  mset_all(s.begun)
  s.begun = {}
  zadd_all(class .. s.c.name, changed)
  zrem_all(class .. s.c.name, empty)
end

-- The gates of each lane's values, and their keys. One stands for all without a record, where values have few jobs.
local function own_gates(s, flat)
  local c, sub, found, keys = s.c, string.sub, {}, {}
  if not c.lone then
    for n = 1, #flat, 2 do found[(n + 1) / 2] = value_gates(c, flat[n]) end
    read_gates()
    return found
  end
  if not s.fresh then
    -- As it is before a first start, and as text after a start of cost 1.
    local one, first = new_gate('', c.word), new_gate('', c.word)
    charge_all({first}, 1)
    batch.gates_changed[''], s.fresh, s.first = nil, {one}, pack_gate(first)
  end
  local lead, from = gate .. c.lead, c.size + 1
  for n = 1, #flat, 2 do keys[(n + 1) / 2] = lead .. sub(flat[n], from) end
  local texts, known, any = redis.call('MGET', unpack(keys)), batch.gates_met, next(batch.gates_met)
  for n = 1, #keys do
    local name = (texts[n] or any) and sub(keys[n], #gate + 1)
    if texts[n] or name and known[name] then found[n] = {gate_of_text(name, c.word, texts[n])}
    else found[n] = s.fresh end
  end
  return found, keys
end

-- Says whether there may be more to start.
local function round(s)
  local want, rows = math.max(2, math.min(s.room - s.took, LANES)), {}
  local flat = redis.call('ZRANGEBYSCORE', class .. s.c.name, '-inf', '(' .. PARKED, 'WITHSCORES', 'LIMIT', 0, want)
  if #flat == 0 then return false end
  local own, keys = own_gates(s, flat)
  for n = 1, #flat, 2 do
    local at = (n + 1) / 2
    -- All its fields: a table that grows costs more.
    rows[at] = {name = flat[n], turn = tonumber(flat[n + 1]), own = own[at], key = keys and keys[at], jobs = false,
      at = 1, full = false, text = false, state = 'open'}
  end
  local n, count = 0, #rows
  local whole, last = count < want, rows[count].turn
  s.alone, s.next_at, s.most = count == 1, nil, math.ceil((s.room - s.took) / count) + 1
  while n < count and goes_on(s) do
    n = n + 1
    local row, other = rows[n], rows[n + 1]
    if lane_turn(s, row, other and other.turn or math.huge) and (whole or row.turn < last) then
      count = count + 1
      local place = count
      while place > n + 1 and rows[place - 1].turn > row.turn do
        rows[place] = rows[place - 1]
        place = place - 1
      end
      rows[place] = row
    end
  end
  keep_pace(s, s.next_at)
  store_round(s, rows, n)
  return not s.stop and goes_on(s)
end

-- Takes jobs of a class until there is no room, its turns are over, or other entries of the line come first: those
-- behind 'bound'. take(id, score, class, gates of its values) leases a job, and says 'taken' and its cost, 'gone' (it
-- leaves, and nothing starts), 'later', or 'dear': a gate has closed until what it costs fits. Returns how many left
-- their lanes, the class's next score if it stays in the line, and why it is to be left alone by this claim.
local function serve(c, score, bound, room, queue, ways, take)
  read_class(c)
  c.pace = c.pace or score
  local s = {c = c, score = score, bound = bound, room = room, queue = queue, ways = ways, take = take,
    waited = c.count, took = 0, paced = 0, refused = 0, charged = string.format(' 1 %d', now), shares = {}, begun = {}}
  s.shut = class_closed(c)
  while not s.shut and round(s) do end
  count_waiting(c, -s.took)
  local shut = class_closed(c)
  if shut then
    if first_lane(c) then park(c.name, shut) end
    return s.took
  end
  local first = first_lane(c)
  return s.took, first and class_score(c, first), s.stop and 'later' or s.refused >= REFUSALS and 'refused'
end
