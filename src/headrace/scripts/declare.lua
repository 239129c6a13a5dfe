-- Declare: a worker says which limits its code has, and which of its tasks and queues have them. The word of the newest
-- code counts: of what was said of one thing, what was first said last. Old code that is still there, or starts again,
-- says what was superseded, and is heard only where no worker says what counts that lives and goes on claiming.
-- include look_anew sort_anew
-- keys    about=owner limit_at=limit known_by=tasks former=superseded replaced limited owners limit_names=limits
-- Marks that are kept of one limit, task or queue.
local MARKS = 10

-- Numbers in one order, without what is an operator's; nil: there are none.
local function text_of_numbers(flat)
  local found = {}
  for n = 1, #flat, 2 do
    if flat[n] ~= 'overrides' then found[#found + 1] = flat[n] .. '=' .. flat[n + 1] end
  end
  table.sort(found)
  return #flat > 0 and table.concat(found, ' ') or nil
end

local function mark_of(text) return text and string.sub(redis.sha1hex(text), 1, 16) or '' end

-- Whether a worker says this of something, by its mark: '' where it knows a task and no limits of it.
local function says(owner, what, mark)
  if redis.call('HEXISTS', about .. owner, 'draining') == 1 then return false end
  local said, task = redis.call('HGET', known_by .. owner, '%' .. what), string.match(what, '^task:(.*)$')
  return said == mark or mark == '' and not said and task and redis.call('HEXISTS', known_by .. owner, task) == 1
end

-- Others count until they are reclaimed: a server that was away ends all leases, and old code may be the first back.
local function said_by_others(owner, what, mark)
  for _, other in ipairs(redis.call('ZRANGE', owners, '(0', '+inf', 'BYSCORE')) do
    if other ~= owner and says(other, what, mark) then return true end
  end
  return false
end

-- Whether what counts is replaced, since a worker says otherwise; and whether newer code keeps it. Texts, or nil.
local function heard(owner, what, text, current)
  local mark, counts = mark_of(text), mark_of(current)
  if text and owner ~= '' then redis.call('HSET', known_by .. owner, '%' .. what, mark) end
  if mark == counts then return false end
  local packed = redis.call('HGET', former, what)
  local before = packed and cmsgpack.unpack(packed) or {}
  for _, one in ipairs(before) do
    if one == mark and said_by_others(owner, what, counts) then return false, true end
  end
  -- That a task has no limits is known of before only where a worker says it.
  if current or said_by_others(owner, what, counts) then
    before[#before + 1] = counts
    if #before > MARKS then table.remove(before, 1) end
    redis.call('HSET', former, what, cmsgpack.pack(before))
  end
  return true
end

-- One limit; the caller has what waits for it looked at anew. What an operator says of it stays.
local function declare_limit(name, fields)
  local count = redis.call('HGET', limit_at .. name, 'overrides')
  redis.call('UNLINK', limit_at .. name)
  redis.call('HSET', limit_at .. name, unpack(fields))
  redis.call('ZADD', limit_names, 0, name)
  if count then redis.call('HSET', limit_at .. name, 'overrides', count) end
end

-- Limits, {name, {field, value, ...}}, the tasks that the worker knows, and the rows of tasks and queues that have
-- limits, {field, row, ...}. Returns of how many of them newer code says otherwise. Where something changes, the others
-- that go on claiming declare theirs anew: the worker whose code it is may leave before they do.
local function declare(owner, limits, tasks, rows)
  redis.call('SREM', replaced .. owner, 'limits')
  if #rows == 0 and #limits == 0 and redis.call('EXISTS', limited) == 0 then return 0 end
  local mine, kept, changed = {}, 0, false
  local function put(what, row, current)
    local new, newer = heard(owner, what, row, current)
    if new and row then redis.call('HSET', limited, what, row) elseif new then redis.call('HDEL', limited, what) end
    if newer then kept = kept + 1 end
    changed = changed or new
    if new then limiting().sort_anew(what, current) end
  end
  for n = 1, #rows, 2 do
    mine[rows[n]] = true
    put(rows[n], rows[n + 1], redis.call('HGET', limited, rows[n]) or nil)
  end
  local gone = {}
  for _, task in ipairs(tasks) do
    if not mine['task:' .. task] then gone[#gone + 1] = 'task:' .. task end
  end
  for first = 1, #gone, 1000 do
    local some = {unpack(gone, first, math.min(first + 999, #gone))}
    for n, current in ipairs(redis.call('HMGET', limited, unpack(some))) do
      if current then put(some[n], nil, current) end
    end
  end
  -- From now on each claim looks whether what stands in a line has limits.
  for _, owner_name in ipairs(#rows > 0 and redis.call('ZRANGE', owners, 0, -1) or {}) do
    redis.call('HSET', about .. owner_name, 'limits', 1)
  end
  local fresh = {}
  for _, one in ipairs(limits) do
    local new, newer = heard(owner, 'limit:' .. one[1], text_of_numbers(one[2]),
      text_of_numbers(redis.call('HGETALL', limit_at .. one[1])))
    if new then
      declare_limit(unpack(one))
      fresh[#fresh + 1] = one[1]
    end
    if newer then kept = kept + 1 end
    changed = changed or new
  end
  -- Once all are stored, since a class may have several of them.
  for _, name in ipairs(fresh) do limiting().look_at_all(name) end
  for _, other in ipairs(changed and redis.call('ZRANGE', owners, 0, -1) or {}) do
    if other ~= owner and redis.call('HEXISTS', about .. other, 'draining') == 0 then
      redis.call('SADD', replaced .. other, 'limits')
    end
  end
  return kept
end
