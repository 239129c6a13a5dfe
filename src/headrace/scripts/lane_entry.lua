-- Lane entry: limited jobs that become ready go to their lanes. Included, never run alone.
-- include lane_exit limited_values excess
-- lazy    limiting enter_lane sort_line
-- keys    ready
-- many    ZADD
-- batch   entering  {}  by lane: {score, id, ...} of the jobs that come
-- step    store_entering
local function enter_lane(name, id, score)
  local rows = batch.entering[name]
  if not rows then rows = {} batch.entering[name] = rows end
  rows[#rows + 1], rows[#rows + 2] = score, id
end

-- Of jobs that line up in a queue, {score, id, ...}, those that are limited go to their lanes; the rest is returned.
local function sort_line(queue, line)
  local rest = {}
  for n = 1, #line, 2 do
    local f = redis.pcall('HMGET', job .. line[n + 1], 'task', 'args', 'key', 'expires')
    local rule = not f.err and f[1] and f[4] ~= LEFT_OUT and limits_of(f[1], queue)
    if rule then
      local name = lane_of(queue, rule, f[2] or '', f[3])
      redis.call('HSET', job .. line[n + 1], 'lane', name)
      enter_lane(name, line[n + 1], line[n])
    else
      rest[#rest + 1], rest[#rest + 2] = line[n], line[n + 1]
    end
  end
  return rest
end

-- New lanes enter their class, unless one of their gates is closed.
local function enter_class(c, names)
  local fresh, rows = {}, {}
  for first = 1, #names, 1000 do
    local some = {unpack(names, first, math.min(first + 999, #names))}
    for n, turn in ipairs(redis.call('ZMSCORE', class .. c.name, unpack(some))) do
      if not turn then fresh[#fresh + 1] = {some[n], value_gates(c, some[n])} end
    end
  end
  read_gates()
  for _, one in ipairs(fresh) do
    local shut = first_closed(one[2])
    if shut then park(one[1], shut) end
    rows[#rows + 1], rows[#rows + 2] = c.turn + (shut and PARKED or 0), one[1]
  end
  zadd_all(class .. c.name, rows)
end

-- Some of those that came, or of those before them, may end as cancelled: a worker sees to it.
local function leave_out(c, name, rows)
  for _, id in ipairs(excess(name, rows)) do
    leave_lane(id)
    redis.call('HSET', job .. id, 'expires', LEFT_OUT, 'more', 1)
    redis.call('ZADD', ready .. c.queue, now, id)
    wake_up(c.queue)
  end
end

local function store_entering()
  local came, by_class = batch.entering, {}
  batch.entering = {}
  for name, rows in pairs(came) do
    local c = class_of(name)
    by_class[c] = by_class[c] or {}
    table.insert(by_class[c], name)
    zadd_all(lane .. name, rows)
    count_waiting(c, #rows / 2)
    touch_class(c, rows[1])
  end
  for c, names in pairs(by_class) do
    enter_class(c, names)
    for _, name in ipairs(c.strict and names or {}) do leave_out(c, name, came[name]) end
  end
end
