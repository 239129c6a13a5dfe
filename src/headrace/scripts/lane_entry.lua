-- Lane entry: limited jobs that become ready go to their lanes; where these are full, some end as cancelled.
-- include lane_exit limited_values
-- lazy    limiting enter_lane sort_line
-- keys    ready owners_at=owners job lane slots_at=slots claims_at=claims cancels_at=cancels mail
-- batch   entering  {}  by lane: {score, id, ...} of the jobs that come
-- step    store_entering
-- When a job ends that a full limit leaves out: a worker claims it from the line, and settles it as cancelled.
local LEFT_OUT = '1'

local function passes(name, g)
  for _, list in ipairs(passed_by(name)) do
    for _, one in ipairs(list) do
      if one == g then return true end
    end
  end
  return false
end

-- The oldest of those that hold a gate, as many as must stop, are asked to.
local function stop_oldest(g, wanted)
  local held = {}
  for _, owner in ipairs(redis.call('ZRANGE', owners_at, 0, -1)) do
    local all, mine = redis.call('HGETALL', slots_at .. owner), {}
    for n = 1, #all, 2 do
      if passes(string.match(all[n + 1], '^%S+'), g) then mine[#mine + 1] = all[n] end
    end
    for first = 1, #mine, 1000 do
      local some = {unpack(mine, first, math.min(first + 999, #mine))}
      for n, token in ipairs(redis.call('ZMSCORE', claims_at .. owner, unpack(some))) do
        if token then held[#held + 1] = {tonumber(token), some[n], owner} end
      end
    end
  end
  table.sort(held, function(a, b) return a[1] < b[1] end)
  for n = 1, math.min(wanted, #held) do
    local id, owner = held[n][2], held[n][3]
    if redis.call('SADD', cancels_at .. owner, id) == 1 then
      redis.call('HSET', job .. id, 'cancel', 1)
      redis.call('PUBLISH', mail .. owner, id)
    end
  end
end

-- The first of the gates of a lane that says what to do when it is full, and has a number at once.
local function strict(list)
  for _, g in ipairs(list) do
    if g.limit.full and g.limit.most then return g end
  end
end

-- Which jobs of a lane are left out, of {score, id, ...} that came.
local function excess(name, rows)
  local shared, own = unpack(passed_by(name))
  local g = strict(own) or strict(shared)
  if not g then return {} end
  local waits, free, full, out = redis.call('ZCARD', lane .. name), math.max(0, g.limit.most - g.held), g.limit.full, {}
  if full == 'cancel_new' then
    for n = #rows, math.max(2, #rows - 2 * (waits - free) + 2), -2 do out[#out + 1] = rows[n] end
    return out
  end
  local stays = free + 1
  if full == 'cancel_running' then
    stays = g.limit.most
    local stop = math.min(waits, stays) - free
    if stop > 0 then stop_oldest(g, stop) end
  end
  return waits > stays and redis.call('ZRANGE', lane .. name, 0, waits - stays - 1) or out
end

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
