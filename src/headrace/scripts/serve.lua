-- Serve: a claim takes limited jobs from the lanes of a class, by turns. Included by claim, never run alone.
-- include lanes
-- lazy    limiting serve_line store_holding held_by_these take_plain to_lane
-- clock   now
-- derive  slots  hash  slots:<owner>
-- many    HSET
-- batch   holding  {}  {id, what it holds, ...} of the limited jobs that this claim leases
-- many    ZADD
-- many    ZREM
-- A turn of a lane of weight 1 moves it this far; lanes of a class that are looked at in vain by one claim; jobs that one claim moves to their lanes.
local TURN, REFUSALS, MOVES = 1000, 64, 500

-- Jobs of lanes that were taken out ahead, since one command may take several.
local function new_heads()
  local heads = {}
  local self = {}
  self.first = function(name, most)
    local h = heads[name]
    if not h or h.at > #h and h.full then
      h = redis.call('ZPOPMIN', lane .. name, most)
      h.at, h.full = 1, #h == 2 * most
      heads[name] = h
    end
    return h[h.at], h[h.at + 1]
  end
  self.next = function(name) heads[name].at = heads[name].at + 2 end
  self.put_back = function()
    for name, h in pairs(heads) do
      local rest = {}
      for n = h.at, #h, 2 do rest[#rest + 1], rest[#rest + 2] = h[n + 1], h[n] end
      zadd_all(lane .. name, rest)
    end
  end
  return self
end

-- The turn after a start. Turns of a lane are on a grid of its own, which its name says, and the first start leads there: by half a turn to one and a half, one on
-- average. Else lanes that came together would go in step, the heavy ones ahead by up to a turn of the light ones.
local function turn_after(turn, name, cost, weight)
  local stride = TURN / weight
  local share = tonumber(string.sub(redis.sha1hex(name), 1, 6), 16) / 2 ^ 24
  return (math.floor(turn / stride - share + 0.5) + share + cost) * stride
end

-- A start holds its gates: its lane, cost, and the time at which these were charged are told of it.
local function hold(id, name, cost, passes)
  local n = #batch.holding
  batch.holding[n + 1], batch.holding[n + 2] = id, string.format('%s %.0f %.0f', name, cost, now)
  for _, list in ipairs(passes) do
    for _, one in ipairs(list) do gates().charge(one, cost) end
  end
end

-- Takes jobs of a class until there is no room, its turns are over, or other entries of the line come first: those behind 'bound'. take(id, score, gates)
-- leases a job, and says 'taken' and its cost, 'gone' (it leaves, and nothing starts), 'later', or 'dear': a gate has closed until what it costs fits.
-- Returns how many left their lanes, the class's next score if it stays in the line, and why it is to be left alone by this claim.
local function serve(c, score, bound, room, take)
  local all, g, heads = lanes(), gates(), new_heads()
  local took, refused, stop = 0, 0, false
  all.begin(c)
  local waited = c.count
  c.pace = c.pace or score

  -- One lane's turn. Returns its next turn: nil when it is empty, and whether it is still open.
  local function turn(row, alone)
    local name, most = row.name, alone and room - took + 1 or 2
    local shut = g.shut(row.gates)
    if shut then
      refused = refused + 1
      g.park(name, shut)
      return row.turn, false
    end
    local id, at = heads.first(name, most)
    local word, cost = 'empty', 1
    if id then word, cost = take(id, at, row.passes) end
    if word == 'later' then
      refused, stop = refused + 1, true
      return row.turn, false, true
    end
    if word == 'dear' then
      shut = g.shut(row.gates)
      if shut then g.park(name, shut) end
      return row.turn, not shut
    end
    if id then
      heads.next(name)
      took = took + 1
    end
    c.turn = math.max(c.turn, row.turn)
    if word == 'taken' then hold(id, name, cost, row.passes) end
    local _, next_at = heads.first(name, most)
    -- As if all that wait had come one after the other: so neither they nor other jobs of the queue stay behind for long.
    c.pace = c.pace + math.max(0, now - c.pace) / math.max(1, waited - took + 1)
    if alone and next_at then c.pace = tonumber(next_at) end
    score = c.pace
    if not next_at then return nil end
    shut = g.shut(row.gates)
    if shut then g.park(name, shut) end
    if word ~= 'taken' then return row.turn, not shut end
    local weight = 1
    for _, one in ipairs(row.gates) do weight = weight * (one.limit.weight or 1) end
    row.turn = alone and row.turn + TURN * cost / weight or turn_after(row.turn, name, cost, weight)
    return row.turn, not shut
  end

  local function round()
    local want = math.min(room - took, 128)
    local flat, rows = redis.call('ZRANGEBYSCORE', class .. c.name, '-inf', '(' .. PARKED, 'WITHSCORES', 'LIMIT', 0, want), {}
    for n = 1, #flat, 2 do
      local own = all.gates(c, flat[n])
      rows[#rows + 1] = {name = flat[n], turn = tonumber(flat[n + 1]), gates = own, passes = {c.gates, own}}
    end
    g.load()
    if #rows == 0 then return false end
    local alone, whole, last = #flat == 2, #flat < 2 * want, rows[#rows].turn
    local turns_of, empty = {}, {}
    while #rows > 0 and took < room and score <= bound and refused < REFUSALS and not all.shut(c) do
      local row = table.remove(rows, 1)
      local at, open, later = turn(row, alone)
      if not at then
        turns_of[row.name] = nil
        empty[#empty + 1] = row.name
      elseif not later then
        turns_of[row.name] = at + (open and 0 or PARKED)
        if open and (whole or at < last) then
          local place = #rows + 1
          while place > 1 and rows[place - 1].turn > at do place = place - 1 end
          table.insert(rows, place, row)
        end
      end
    end
    local changed = {}
    for name, at in pairs(turns_of) do changed[#changed + 1], changed[#changed + 2] = at, name end
    zadd_all(class .. c.name, changed)
    zrem_all(class .. c.name, empty)
    return not stop and took < room and score <= bound and refused < REFUSALS
  end

  local shut = all.shut(c)
  while not shut and round() do shut = all.shut(c) end
  heads.put_back()
  all.count(c, -took)
  shut = all.shut(c)
  if shut then
    if all.first(c) then g.park(c.name, shut) end
    return took
  end
  local first = all.first(c)
  return took, first and all.score(c, first), stop and 'later' or refused >= REFUSALS and 'refused'
end

-- Those that have limits leave the line for their lanes, where these were declared after the jobs had come. Says whether one did.
local function to_lane(queue, id, score, fields)
  if fields.err or not fields[1] or string.byte(queue) == 64 or not limits_of(fields[1], queue) then return false end
  return #lanes().sort(queue, {score, id}) == 0
end

-- A job of a line, which may have limits. Says whether it took room.
local function take_plain(queue, id, score, ways)
  local fields, node = ways.read(id)
  if ways.looks and to_lane(queue, id, score, fields) then return false end
  ways.take(queue, id, score, fields, node)
  return true
end

-- A limited job leaves its lane. One whose time is over starts nothing, so it passes no gate.
local function take_limited(queue, id, score, passes, ways)
  local fields, node = ways.read(id)
  local rest = not fields.err and fields[3] and redis.call('HMGET', job .. id, 'expires', 'cost') or {}
  local over, cost = (tonumber(rest[1]) or math.huge) <= now, cost_of(rest[2])
  if cost > 1 and not over and gates().too_dear(passes, cost) then return 'dear' end
  if not fields.err and ways.may and not ways.may(queue, fields[1]) then return 'later' end
  return ways.take(queue, id, score, fields, node) and not over and 'taken' or 'gone', cost
end

-- The front of a line, in which classes stand: {id, score, ...} that have left it already. The claim's ways: read(id); take(queue, id, score, fields);
-- looks: whether others of the line may have limits; may(queue, task): whether there is room for a kind, and then only what has left the line is served.
-- Returns how much room is left.
local function serve_line(queue, popped, room, ways)
  local rows, left_alone, set_aside, refused, moved, whole = {}, {}, {}, false, 0, not ways.may
  local function take(id, score, passes) return take_limited(queue, id, score, passes, ways) end
  local function add(flat)
    for n = 1, #flat, 2 do rows[#rows + 1] = {flat[n], tonumber(flat[n + 1])} end
  end
  local function put(entry, score)
    local at = #rows + 1
    if whole and at > 1 and rows[at - 1][2] >= score then
      while at > 1 and rows[at - 1][2] > score do at = at - 1 end
      table.insert(rows, at, {entry, score})
    else
      redis.call('ZADD', ready .. queue, score, entry)
    end
  end
  add(popped)
  while room > 0 and moved < MOVES do
    if #rows == 0 and whole then add(redis.call('ZPOPMIN', ready .. queue, room)) end
    local row = table.remove(rows, 1)
    if not row then break end
    if string.byte(row[1]) ~= 126 then
      if take_plain(queue, row[1], row[2], ways) then room = room - 1 else moved = moved + 1 end
    elseif left_alone[row[1]] then
      set_aside[#set_aside + 1], set_aside[#set_aside + 2] = row[2], row[1]
    else
      local bound = math.huge
      if whole then bound = rows[1] and rows[1][2] or tonumber(redis.call('ZRANGE', ready .. queue, 0, 0, 'WITHSCORES')[2] or bound) end
      local took, score, stop = serve(lanes().class(queue .. '|' .. string.sub(row[1], 2)), row[2], bound, room, take)
      room = room - took
      left_alone[row[1]], refused = stop, refused or stop == 'refused'
      if score then put(row[1], score) end
    end
  end
  for _, row in ipairs(rows) do set_aside[#set_aside + 1], set_aside[#set_aside + 2] = row[2], row[1] end
  zadd_all(ready .. queue, set_aside)
  -- The next claim goes on.
  if refused or moved >= MOVES then wake_up(queue) end
  return room
end

-- What this claim leases holds its gates until it leaves the claims. Returns when the next gate opens, if that is to be told, and what is held.
local function store_holding(owner)
  if not batch.lanes then return nil, {} end
  local held, large = batch.holding, #batch.holding > 32
  -- As for the claims: keeps the hash out of the form that is searched from end to end.
  if large then redis.call('HSET', slots .. owner, string.rep('-', 65), '') end
  hset_all(slots .. owner, held)
  batch.holding = {}
  if large then redis.call('HDEL', slots .. owner, string.rep('-', 65)) end
  batch.lanes.store(true)
  return batch.lanes.due, held
end

-- What a claim has leased whose reply was lost, as it told of it.
local function held_by_these(owner, ids)
  local found = {}
  for n, text in ipairs(redis.call('HMGET', slots .. owner, unpack(ids))) do
    if text then found[#found + 1], found[#found + 2] = ids[n], text end
  end
  return found
end
