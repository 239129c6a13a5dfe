-- Serve: a claim takes jobs from a line in which classes of limited jobs stand.
-- include rounds lane_entry
-- lazy    limiting serve_line store_holding held_by_these take_plain to_lane
-- keys    slots
-- Jobs that one claim moves to their lanes.
local MOVES = 500

-- Those whose limits were declared after they had come leave the line for their lanes. Says whether one did.
local function to_lane(queue, id, score, fields)
  if fields.err or not fields[1] or string.byte(queue) == 64 or not limits_of(fields[1], queue) then return false end
  return #sort_line(queue, {score, id}) == 0
end

-- A job of a line, which may have limits. Says whether it took room.
local function take_plain(queue, id, score, ways)
  local fields, node = ways.read(id)
  if ways.looks and to_lane(queue, id, score, fields) then return false end
  ways.take(queue, id, score, fields, node)
  return true
end

-- A limited job leaves its lane. One whose time is over passes no gate; one with other limits goes where it belongs.
local function take_limited(queue, id, score, c, own, ways)
  local fields, node = ways.read(id)
  local over, cost = false, 1
  local rule = fields.err or not fields[1] or limits_of(fields[1], queue)
  if rule ~= true and (rule and rule[1]) ~= c.limits then
    if not to_lane(queue, id, score, fields) then
      redis.call('HDEL', job .. id, 'lane')
      ways.take(queue, id, score, fields, node)
    end
    return 'gone', cost
  end
  if not fields.err and fields[3] then
    local rest = redis.call('HMGET', job .. id, 'expires', 'cost')
    over, cost = (tonumber(rest[1]) or math.huge) <= now, cost_of(rest[2])
    if cost > 1 and not over and too_dear({c.gates, own}, cost) then return 'dear' end
  end
  if ways.may and not fields.err and not ways.may(queue, fields[1]) then return 'later' end
  return ways.take(queue, id, score, fields, node) and not over and 'taken' or 'gone', cost
end

-- The front of a line, in which classes stand: {id, score, ...} that have left it already. The claim's ways: read(id);
-- take(queue, id, score, fields); looks: whether others of the line may have limits; full: it brings enough; may(queue,
-- task): is there room for a kind, and then only what left the line is served. Returns the room left.
local function serve_line(queue, popped, room, ways)
  local rows, left_alone, set_aside, refused, moved, whole = {}, {}, {}, false, 0, not ways.may
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
  while room > 0 and moved < MOVES and not ways.full do
    if #rows == 0 and whole then add(redis.call('ZPOPMIN', ready .. queue, room)) end
    local row = table.remove(rows, 1)
    if not row then break end
    if string.byte(row[1]) ~= 126 then
      if take_plain(queue, row[1], row[2], ways) then room = room - 1 else moved = moved + 1 end
    elseif left_alone[row[1]] then
      set_aside[#set_aside + 1], set_aside[#set_aside + 2] = row[2], row[1]
    else
      local bound = math.huge
      if whole then
        bound = rows[1] and rows[1][2] or tonumber(redis.call('ZRANGE', ready .. queue, 0, 0, 'WITHSCORES')[2] or bound)
      end
      local took, score, stop = serve(class_named(queue .. '|' .. string.sub(row[1], 2)), row[2], bound, room, queue,
        ways, take_limited)
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

-- What this claim leases holds its gates. Returns when the next gate opens, if that is to be told, and what is held.
local function store_holding(owner)
  local held, large = batch.holding, #batch.holding > 32
  -- As for the claims: keeps the hash out of the form that is searched from end to end.
  if large then redis.call('HSET', slots .. owner, string.rep('-', 65), '') end
  hset_all(slots .. owner, held)
  batch.holding = {}
  if large then redis.call('HDEL', slots .. owner, string.rep('-', 65)) end
  store_entering()
  return store_lanes(true), held
end

-- What a claim has leased whose reply was lost, as it told of it.
local function held_by_these(owner, ids)
  local found = {}
  for n, text in ipairs(redis.call('HMGET', slots .. owner, unpack(ids))) do
    if text then found[#found + 1], found[#found + 2] = ids[n], text end
  end
  return found
end
