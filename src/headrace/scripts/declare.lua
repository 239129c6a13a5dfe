-- Declare: a worker says which limits its code has, and which of its tasks have them. Included, never run alone.
-- Only numbers that changed are stored: then what waits is looked at anew.
-- include lanes
-- include lease
-- derive  limit_at  hash  limit:<limit>
-- derive  waiting  set   waiting:<limit>
-- key     limited  hash  limited
local function same(name, fields)
  local flat, found, size = redis.call('HGETALL', limit_at .. name), {}, 0
  for n = 1, #flat, 2 do found[flat[n]], size = flat[n + 1], size + 2 end
  for n = 1, #fields, 2 do
    if found[fields[n]] ~= fields[n + 1] then return false end
  end
  return size == #fields
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
  for _, one in ipairs(limits) do
    if not same(one[1], one[2]) then
      redis.call('UNLINK', limit_at .. one[1])
      redis.call('HSET', limit_at .. one[1], unpack(one[2]))
      limiting().lanes().look_anew(one[1])
    end
  end
end
