-- Limited values: which limits a task has, and the values of a job that they go by. Included, never run alone.
-- A value is read from the stored arguments, so that producers with old code, or without any, need not know of limits.
-- include argument_values
-- lazy    limiting limits_of lane_of
-- keys    limited
-- batch   rules    {}    by queue and task: what limits_of found
-- The limits of a task in a queue: {names, '=' behind those that go by a value, and {name, by, position, default} of
-- these}; false for none.
local function limits_of(task, queue)
  local name = queue .. '|' .. task
  local rule = batch.rules[name]
  if rule ~= nil then return rule end
  local rows, names, valued, met = redis.call('HMGET', limited, 'queue:' .. queue, 'task:' .. task), {}, {}, {}
  for n = 1, 2 do
    for _, row in ipairs(rows[n] and cmsgpack.unpack(rows[n]) or {}) do
      if not met[row[1]] then
        met[row[1]] = true
        names[#names + 1] = row[1] .. (row[2] ~= '' and '=' or '')
        if row[2] ~= '' then valued[#valued + 1] = row end
      end
    end
  end
  rule = #names > 0 and {table.concat(names, ','), valued}
  batch.rules[name] = rule
  return rule
end

-- The lane of a job: its queue, its limits, and its values for those that go by one. Its key is given, or stands in the
-- list of its fields.
local function lane_of(queue, rule, args, key)
  if type(key) == 'table' then
    local fields = key
    key = nil
    for n = 1, #fields, 2 do
      if fields[n] == 'key' then key = fields[n + 1] end
    end
  end
  local values = {}
  for n, row in ipairs(rule[2]) do
    if row[2] == 'key' then
      values[n] = value_name(key or '')
    else
      -- Arguments that cannot be read share the lane of those without the value.
      local read, value = pcall(argument, args, row[2], row[3])
      values[n] = read and (value or row[4]) or ''
    end
  end
  return queue .. '|' .. rule[1] .. '|' .. table.concat(values, '|')
end
