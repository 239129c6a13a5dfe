-- Limited values: which limits a task has, and the values of a job that they go by.
-- A value is read from the stored arguments, so that producers with old code, or without any, need not know of limits.
-- include argument_values lane_classes
-- lazy    limiting limits_of lane_of overfull
-- keys    limited lane
-- batch   rules    {}    by queue and task: what limits_of found
-- Those of a task in a queue: {names, '=' behind those by a value, {{name, by, position, default}, ...}}, or false.
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

-- The lane of a job: its queue, its limits, and its values for those that go by one. key: given, or its fields.
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

-- New jobs are refused, all of a call or none, where more would wait in a lane than its limits let wait. Those accepted
-- before count when they wait, also after a retry. Delayed, ordered and unique ones do not when they come.
-- Of batches as accept has them: {limit, its backlog, jobs that wait} of a lane that would have too many, else nothing.
local function overfull(batches)
  local coming, most = {}, {}
  for _, batch in ipairs(batches) do
    local queue, _, delay, at, _, fields, key, unique = unpack(batch[1])
    local rule = not (key or unique) and math.max(at, now + delay) <= now and limits_of(fields[2], queue)
    local c = rule and class_named(queue .. '|' .. rule[1])
    for _, limit in ipairs(c and c.names or {}) do
      local backlog = numbers_of(limit).backlog
      if backlog and (not most[c.name] or backlog < most[c.name][2]) then most[c.name] = {limit, backlog} end
    end
    for n = 1, c and most[c.name] and #batch[2] or 0, 2 do
      local name = lane_of(queue, rule, batch[2][n + 1], fields)
      coming[name] = (coming[name] or 0) + 1
    end
  end
  for name, count in pairs(coming) do
    local limit, backlog = unpack(most[class_of(name).name])
    local waits = redis.call('ZCARD', lane .. name)
    if waits + count > backlog then return {limit, backlog, waits} end
  end
end
