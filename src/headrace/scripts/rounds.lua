-- Rounds: jobs of the lanes of a class start, by turns. Included by claim, never run alone.
-- include lanes
-- lazy    limiting serve
-- clock   now
-- many    ZADD
-- many    ZREM
-- batch   holding  {}  {id, what it holds, ...} of the limited jobs that this claim leases
-- A turn of a lane of weight 1 moves it this far; lanes of a class that are looked at in vain by one claim; lanes that one round reads.
local TURN, REFUSALS, LANES = 1000, 64, 128

-- The turn after a start. Turns of a lane are on a grid of its own, which its name says, and the first start leads there: by half a turn to one and a half, one on
-- average. Else lanes that came together would go in step, the heavy ones ahead by up to a turn of the light ones. A lane that is alone needs none.
local function turn_after(s, row, cost)
  local weight = 1
  for _, one in ipairs(row.own) do weight = weight * (one.limit.weight or 1) end
  local stride = TURN / weight
  if s.alone then return row.turn + cost * stride end
  local share = s.shares[row.name]
  if not share then
    share = tonumber(string.sub(redis.sha1hex(row.name), 1, 6), 16) / 2 ^ 24
    s.shares[row.name] = share
  end
  return (math.floor(row.turn / stride - share + 0.5) + share + cost) * stride
end

-- The first job of a lane, and its score; nil: the lane is empty. Jobs are taken out ahead, since one command may take several.
local function head(row, most)
  local jobs = row.jobs
  if not jobs or row.full and row.at > #jobs then
    jobs = redis.call('ZPOPMIN', lane .. row.name, most)
    row.jobs, row.at, row.full = jobs, 1, #jobs == 2 * most
  end
  return jobs[row.at], jobs[row.at + 1]
end

-- As if all that wait had come one after the other: so neither they nor other jobs of the queue stay behind for long.
local function keep_pace(s, next_at)
  local c = s.c
  if s.alone and next_at then c.pace = tonumber(next_at)
  elseif c.pace < now then c.pace = now - (now - c.pace) * math.max(0, s.waited - s.took) / math.max(1, s.waited - s.paced) end
  s.paced, s.score = s.took, c.pace
end

local function goes_on(s)
  return s.took < s.room and s.score <= s.bound and s.refused < REFUSALS and not s.shut
end

-- A start holds its gates: its lane, cost, and the time at which these were charged are told of it.
local function hold(s, row, id, cost)
  local held, text = batch.holding, row.text
  if cost ~= 1 then
    text = row.name .. string.format(' %d %d', cost, now)
  elseif not text then
    text = row.name .. s.charged
    row.text = text
  end
  local n = #held
  held[n + 1], held[n + 2] = id, text
  if s.c.gates[1] then s.g.charge_all(s.c.gates, cost) end
  if row.own[1] then s.g.charge_all(row.own, cost) end
end

-- Jobs of one lane start until the turn of another one comes, or a gate closes. Says whether the lane may have another turn in this round.
local function run(s, row, other)
  local g, c, free, id, at = s.g, s.c, 0, nil, nil
  repeat
    if free == 0 then
      free = g.free(row.own)
      if free == 0 then break end
      s.shut = g.shut(c.gates)
      if s.shut then return true end
      free = math.min(free, g.free(c.gates))
    end
    if not id then id, at = head(row, math.min(s.most, free + 1)) end
    local word, cost = 'empty', 1
    if id then word, cost = s.take(id, at, c.gates, row.own) end
    if word == 'later' then
      s.refused, s.stop = s.refused + 1, true
      return false
    elseif word == 'dear' then
      -- A gate has closed until what it costs fits.
      free = 0
    else
      if row.turn > c.turn then c.turn = row.turn end
      if id then row.at, s.took = row.at + 2, s.took + 1 end
      if word == 'taken' then
        hold(s, row, id, cost)
        free = free - 1
      end
      id, at = head(row, s.most)
      if s.bound < math.huge then keep_pace(s, at) end
      if not id then
        row.state = 'empty'
        return false
      end
      if word == 'taken' then row.turn = turn_after(s, row, cost) end
    end
  until not goes_on(s) or row.turn >= other
  s.next_at = at
  if free > 0 then return true end
  s.shut = g.shut(c.gates)
  local shut = g.shut(row.own)
  if not shut then return true end
  -- In vain: no job of it was looked at.
  if not id then s.refused = s.refused + 1 end
  row.state = 'parked'
  g.park(row.name, shut)
  return false
end

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
      if row.state == 'empty' then empty[#empty + 1] = row.name
      else changed[#changed + 1], changed[#changed + 2] = row.turn + (row.state == 'parked' and PARKED or 0), row.name end
      row.state = 'stored'
    end
  end
  zadd_all(class .. s.c.name, changed)
  zrem_all(class .. s.c.name, empty)
end

-- Says whether there may be more to start.
local function round(s)
  local want, rows = math.max(2, math.min(s.room - s.took, LANES)), {}
  local flat = redis.call('ZRANGEBYSCORE', class .. s.c.name, '-inf', '(' .. PARKED, 'WITHSCORES', 'LIMIT', 0, want)
  if #flat == 0 then return false end
  for n = 1, #flat, 2 do
    -- All its fields: a table that grows costs more.
    rows[(n + 1) / 2] = {name = flat[n], turn = tonumber(flat[n + 1]), own = s.all.gates(s.c, flat[n]), jobs = false, at = 1, full = false, text = false, state = 'open'}
  end
  s.g.load()
  local n, count = 0, #rows
  local whole, last = count < want, rows[count].turn
  s.alone, s.next_at, s.most = count == 1, nil, math.ceil((s.room - s.took) / count) + 1
  while n < count and goes_on(s) do
    n = n + 1
    local row, other = rows[n], rows[n + 1]
    if run(s, row, other and other.turn or math.huge) and (whole or row.turn < last) then
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

-- Takes jobs of a class until there is no room, its turns are over, or other entries of the line come first: those behind 'bound'. take(id, score, gates, more
-- gates) leases a job, and says 'taken' and its cost, 'gone' (it leaves, and nothing starts), 'later', or 'dear': a gate has closed until what it costs fits.
-- Returns how many left their lanes, the class's next score if it stays in the line, and why it is to be left alone by this claim.
local function serve(c, score, bound, room, take)
  local all, g = lanes(), gates()
  all.begin(c)
  c.pace = c.pace or score
  local s = {c = c, all = all, g = g, score = score, bound = bound, room = room, take = take, waited = c.count, took = 0, paced = 0, refused = 0,
    charged = string.format(' 1 %d', now), shares = {}}
  s.shut = all.shut(c)
  while not s.shut and round(s) do end
  all.count(c, -s.took)
  local shut = all.shut(c)
  if shut then
    if all.first(c) then g.park(c.name, shut) end
    return s.took
  end
  local first = all.first(c)
  return s.took, first and all.score(c, first), s.stop and 'later' or s.refused >= REFUSALS and 'refused'
end
