-- Lanes: where limited jobs wait to start. Classes that a script has touched go where they belong. A class stands in
-- the line of its queue, as '~' and its limits, and its lanes take turns. What waits for a closed gate is behind that
-- gate instead: a lane, or, where the limit goes by no value, its class. A gate that opens hands it over.
-- include wake lane_classes
-- lazy    limiting timers_moved
-- keys    scheduled ready waiting timers behind
-- batch   moved_timers  nil  whether the first of the timers may be another one now
-- step    store_lanes
-- A lane or a class waits for it.
local function park(unit, g)
  redis.call('SADD', behind .. g.name, unit)
  g.waits = true
  batch.gates_changed[g.name] = g
end

-- A lane or a class has no jobs any more, so it waits for none of these. Else its gate stays, and opens for nothing.
local function leave_gates(unit, list)
  for _, g in ipairs(list) do
    if g.waits and redis.call('SREM', behind .. g.name, unit) == 1 then
      g.waits = redis.call('EXISTS', behind .. g.name) == 1
      batch.gates_changed[g.name] = g
    end
  end
end

-- Changed ones that are open hand over what waits for them. That may change further gates, and a table is not walked
-- while it grows: so those that open are found first, and again until none does.
local function open_gates(handle)
  repeat
    local opened = {}
    for _, g in pairs(batch.gates_changed) do
      if g.waits and not closed_until(g) then opened[#opened + 1] = g end
    end
    for _, g in ipairs(opened) do
      g.waits = false
      for _, unit in ipairs(redis.call('SMEMBERS', behind .. g.name)) do handle(unit) end
      redis.call('UNLINK', behind .. g.name)
    end
  until #opened == 0
end

-- Stores what changed, as long as it says something; returns one of the gates that open at a time.
local function store_gates()
  local stays, size, ends, times, timed = {}, 0, {}, {}, nil
  for name, g in pairs(batch.gates_changed) do
    if g.held > 0 or g.waits then
      stays[size + 1] = gate .. name
      stays[size + 2] = pack_gate(g)
      size = size + 2
    else
      local kind = g.limit.kind
      local remembers = math.max(kind and kind.ends(g, g.limit) or 0, g.next, g.till + g.strikes * 60000000) - now
      if remembers > 0 then redis.call('SET', gate .. name, pack_gate(g), 'PX', math.ceil(remembers / 1000) + 1000)
      else ends[#ends + 1] = gate .. name end
    end
    local opens = g.waits and closed_until(g)
    if opens and opens < math.huge then
      -- Not more often than each 1.5 ms: by then several may start, and late claims have most of the slack.
      times[#times + 1], times[#times + 2] = string.format('%.0f', math.max(opens, now + 1500)), 'gate:' .. name
      timed = name
    end
  end
  batch.gates_changed = {}
  mset_all(stays)
  unlink_all(ends)
  zadd_all(timers, times)
  return timed
end

-- A gate opened for a lane or a class.
local function set_free(unit)
  local c = class_of(unit)
  if unit ~= c.name then
    local turn = tonumber(redis.call('ZSCORE', class .. c.name, unit) or 0)
    if turn >= PARKED then redis.call('ZADD', class .. c.name, math.max(turn - PARKED, read_class(c).turn), unit) end
  end
  touch_class(c)
end

-- Into the line of its queue, or behind its closed gate.
local function place_class(c, score)
  local first = first_lane(c)
  if not first then return redis.call('ZREM', ready .. c.queue, '~' .. c.limits) end
  local shut = class_closed(c)
  if shut then return park(c.name, shut) end
  local at = class_score(c, first)
  redis.call('ZADD', ready .. c.queue, 'LT', math.min(at, score or at), '~' .. c.limits)
  wake_up(c.queue)
end

local function store_class(c)
  local key = classes .. c.queue
  if not c.count then return end
  if c.count <= 0 then
    redis.call('HDEL', key, c.limits, c.limits .. '|')
    for _, name in ipairs(c.names) do redis.call('SREM', waiting .. name, c.name) end
    leave_gates(c.name, c.gates)
    leave_gates(c.name, c.bars)
  else
    local where = string.format('%.0f %.0f', c.turn, c.pace or now)
    if redis.call('HSET', key, c.limits, c.count, c.limits .. '|', where) > 0 then
      -- Also where no worker is woken, since a gate is closed.
      redis.call('SADD', queues, c.queue)
      for _, name in ipairs(c.names) do redis.call('SADD', waiting .. name, c.name) end
    end
  end
  c.count, c.turn, c.pace = nil, nil, nil
end

-- The first of the timers is told by one entry of what is scheduled: so all who sleep hear of it, and others pay
-- nothing. Returns its time, and whether it is earlier than what they knew.
local function tell_time()
  local first = redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
  if not first then
    redis.call('ZREM', scheduled, '~')
    return nil, false
  end
  local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', scheduled, first, '~')
  return first, not nearest or tonumber(first) < tonumber(nearest)
end

local function timers_moved()
  batch.moved_timers = true
end

-- quiet: the caller tells of the time that it returns, when the next gate opens, if that may be another one now.
local function store_lanes(quiet)
  open_gates(set_free)
  local touched = batch.classes_touched
  for c, t in pairs(touched) do place_class(c, t.score) end
  for c in pairs(touched) do store_class(c) end
  batch.classes_touched = {}
  local timed, due, earlier = store_gates(), nil, false
  if timed or batch.moved_timers then due, earlier = tell_time() end
  batch.moved_timers = false
  if earlier and timed and not quiet then
    -- A dispatcher that sleeps learns of the earlier time.
    local unit = redis.call('SRANDMEMBER', behind .. timed)
    if unit then wake_up(class_of(unit).queue) end
  end
  return due
end
