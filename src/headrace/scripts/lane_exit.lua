-- Lane exit: jobs leave their lanes without a start.
-- include lanes
-- lazy    limiting leave_lane clear_lanes
-- keys    job
-- Jobs left a lane without a start. One that is empty leaves its class, and the gate that it is behind.
local function end_empty(c, name)
  if redis.call('EXISTS', lane .. name) == 1 then return end
  redis.call('ZREM', class .. c.name, name)
  local own = value_gates(c, name)
  read_gates()
  leave_gates(name, own)
end

-- A job leaves the lane in which it waits; false: it is in none.
local function leave_lane(id)
  local name = redis.pcall('HGET', job .. id, 'lane')
  if type(name) ~= 'string' or redis.call('ZREM', lane .. name, id) == 0 then return false end
  local c = class_of(name)
  count_waiting(c, -1)
  end_empty(c, name)
  return true
end

-- Jobs leave the lanes of a queue as long as there is room(), each handed over.
local function clear_lanes(queue, room, handle)
  for _, limits in ipairs(redis.call('HKEYS', classes .. queue)) do
    local c = string.sub(limits, -1) ~= '|' and class_named(queue .. '|' .. limits)
    while c and room() > 0 do
      local name = redis.call('ZRANGE', class .. c.name, 0, 0)[1]
      if not name then break end
      local popped = redis.call('ZPOPMIN', lane .. name, room())
      for n = 1, #popped, 2 do handle(popped[n]) end
      count_waiting(c, -#popped / 2)
      end_empty(c, name)
    end
    if c then touch_class(c) end
  end
end
