-- Sort anew: where a task or a queue has other limits or values, what waits goes where it belongs now, in pieces.
-- include lane_entry
-- lazy    limiting sort_anew sort_piece
-- keys    timers queues limited waiting classes class lane
-- batch   sorted   0     jobs that this script has looked at
-- batch   all_lines nil  whether all lines are due already: a worker may declare many tasks
-- Jobs that one script looks at, and lanes that one piece of a class brings.
local JOBS, SOME_LANES = 250, 100

-- Timers: sort:<cursor>:<queue or class>, of its line or its lanes, and jobs:<cursor>:<lane>.
-- what: task:<task> or queue:<queue>. before: its limits until now, packed, or nil.
local function sort_anew(what, before)
  local rows, queue = {}, string.match(what, '^queue:(.*)$')
  local function add(unit) rows[#rows + 1], rows[#rows + 2] = now, 'sort:0:' .. unit end
  local function add_queue(name)
    add(name)
    for _, limits in ipairs(redis.call('HKEYS', classes .. name)) do
      if string.sub(limits, -1) ~= '|' then add(name .. '|' .. limits) end
    end
  end
  if queue then
    add_queue(queue)
  elseif before then
    for _, unit in ipairs(redis.call('SMEMBERS', waiting .. cmsgpack.unpack(before)[1][1])) do add(unit) end
  elseif not batch.all_lines then
    batch.all_lines = true
    local names = redis.call('SMEMBERS', queues)
    for first = 1, #names, 1000 do
      local fields = {}
      for n = first, math.min(first + 999, #names) do fields[#fields + 1] = 'queue:' .. names[n] end
      for n, has in ipairs(redis.call('HMGET', limited, unpack(fields))) do
        local name = names[first + n - 1]
        if has then add_queue(name) else add(name) end
      end
    end
  end
  zadd_all(timers, rows)
  timers_moved()
end

-- Jobs that have no limits leave their line where they have some now.
local function sort_line_piece(queue, found)
  local line, stay, gone = {}, {}, {}
  for n = 1, #found, 2 do
    if string.byte(found[n]) ~= 126 then line[#line + 1], line[#line + 2] = found[n + 1], found[n] end
  end
  local rest = sort_line(queue, line)
  for n = 2, #rest, 2 do stay[rest[n]] = true end
  for n = 2, #line, 2 do
    if not stay[line[n]] then gone[#gone + 1] = line[n] end
  end
  zrem_all(ready .. queue, gone)
end

-- Jobs leave their lane for the one where they belong, or for the line.
local function sort_lane_piece(name, found)
  local c, gone, plain = class_of(name), {}, {}
  for n = 1, #found, 2 do
    local id, score = found[n], found[n + 1]
    local f = redis.pcall('HMGET', job .. id, 'task', 'args', 'key')
    local rule = not f.err and f[1] and limits_of(f[1], c.queue)
    local to = rule and lane_of(c.queue, rule, f[2] or '', f[3])
    if not f.err and f[1] and to ~= name then
      gone[#gone + 1] = id
      if to then
        redis.call('HSET', job .. id, 'lane', to)
        enter_lane(to, id, score)
      else
        redis.call('HDEL', job .. id, 'lane')
        plain[#plain + 1], plain[#plain + 2] = score, id
      end
    end
  end
  if #gone == 0 then return end
  zrem_all(lane .. name, gone)
  count_waiting(c, -#gone)
  end_empty(c, name)
  zadd_all(ready .. c.queue, plain)
  if #plain > 0 then wake_up(c.queue) end
end

-- A piece that is due; what is left of it is due again.
local function sort_piece(kind, cursor, unit)
  local function later(at) redis.call('ZADD', timers, now, kind .. ':' .. at .. ':' .. unit) end
  if batch.sorted >= JOBS then return later(cursor) end
  local is_class = kind == 'sort' and string.find(unit, '|', 1, true)
  local found = redis.call('ZSCAN', (kind == 'jobs' and lane or is_class and class or ready) .. unit, cursor, 'COUNT',
    is_class and SOME_LANES or JOBS)
  batch.sorted = batch.sorted + #found[2] / 2
  if kind == 'jobs' then sort_lane_piece(unit, found[2])
  elseif is_class then
    for n = 1, #found[2], 2 do redis.call('ZADD', timers, now, 'jobs:0:' .. found[2][n]) end
  else sort_line_piece(unit, found[2]) end
  if found[1] ~= '0' then later(found[1]) end
end
