-- Declare: a worker says which limits its code has, and which of its tasks have them. Included, never run alone.
-- Only numbers that changed are stored: then what waits is looked at anew.
-- include lanes
-- include lease
-- derive  limit_at      hash  limit:<limit>
-- derive  overrides_at  hash  overrides:<limit>
-- derive  waiting       set   waiting:<limit>
-- key     limited       hash  limited
-- key     limit_names   zset  limits
local function same(name, fields)
  local flat, found, size = redis.call('HGETALL', limit_at .. name), {}, 0
  for n = 1, #flat, 2 do
    if flat[n] ~= 'overrides' then found[flat[n]], size = flat[n + 1], size + 2 end
  end
  for n = 1, #fields, 2 do
    if found[fields[n]] ~= fields[n + 1] then return false end
  end
  return size == #fields
end

-- One limit: what waits for it is looked at anew, where its numbers changed. What an operator says of it stays.
local function declare_limit(name, fields)
  if same(name, fields) then return end
  redis.call('UNLINK', limit_at .. name)
  redis.call('HSET', limit_at .. name, unpack(fields))
  redis.call('ZADD', limit_names, 0, name)
  local over = redis.call('HLEN', overrides_at .. name)
  if over > 0 then redis.call('HSET', limit_at .. name, 'overrides', over) end
  limiting().lanes().look_anew(name)
end

-- Limits, {name, {field, value, ...}}, the tasks that the worker knows, {task, kind, ...}, and the rows of tasks and queues that have limits, {field, row, ...}.
local function declare(limits, tasks, rows)
  if #rows == 0 and #limits == 0 and redis.call('EXISTS', limited) == 0 then return end
  local mine, gone = {}, {}
  for n = 1, #rows, 2 do mine[rows[n]] = true end
  for n = 1, #tasks, 2 do
    if not mine['task:' .. tasks[n]] then gone[#gone + 1] = 'task:' .. tasks[n] end
  end
  for n = 1, #gone, 1000 do redis.call('HDEL', limited, unpack(gone, n, math.min(n + 999, #gone))) end
  for n = 1, #rows, 2 do redis.call('HSET', limited, rows[n], rows[n + 1]) end
  -- From now on each claim looks whether what stands in a line has limits.
  for _, owner_name in ipairs(#rows > 0 and redis.call('ZRANGE', owners, 0, -1) or {}) do redis.call('HSET', about .. owner_name, 'limits', 1) end
  for _, one in ipairs(limits) do declare_limit(unpack(one)) end
end
