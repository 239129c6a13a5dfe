-- Lanes: where limited jobs wait to start. Classes that a script has touched go where they belong. A class stands in
-- the line of its queue, as '~' and its limits, and its lanes take turns. What waits for a closed gate is behind that
-- gate instead: a lane, or, where the limit goes by no value, its class.
-- include wake lane_classes gate_waits
-- lazy    limiting timers_moved
-- keys    scheduled ready waiting
-- batch   moved_timers  nil  whether the first of the timers may be another one now
-- step    store_lanes
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
