-- Backlog: new jobs are refused, all of a call or none, where more would wait in a lane than its limits let wait.
-- Included, never run alone.
-- Jobs that were accepted before count when they wait, also after a retry; they are never refused. Delayed, ordered and
-- unique ones are not counted when they come.
-- lazy    limiting overfull
-- include lane_classes limited_values
-- keys    lane
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
