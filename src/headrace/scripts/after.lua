-- After: a new job waits until other jobs have ended.
-- Such a job is blocked: a member of after:<id> of each job that has not ended, whose number is its field pending. The
-- end of that job leaves a chore, and tend frees or cancels the members.
-- lazy    following await_ends unknown will_be_freed
-- keys    waited chores totals job after
local END = {succeeded = true, failed = true, cancelled = true, quarantined = true}

-- In some batches, the first predecessor that is neither stored nor one of their own jobs.
local function unknown(some)
  local own = {}
  for _, one in ipairs(some) do
    local before = one[1][7]
    for n = 2, type(before) == 'table' and #before or 1 do
      if not own[before[n]] and redis.call('EXISTS', job .. before[n]) == 0 then return {before[n]} end
    end
    for n = 1, #one[2], 2 do own[one[2][n]] = true end
  end
end

-- Of a line, {score, id, ...}, those that may start; the others wait. before: {1 where any end counts, id, ...}.
local function await_ends(before, line)
  local left = {}
  for n = 2, #before do
    local state = redis.pcall('HGET', job .. before[n], 'st')
    if type(state) ~= 'string' then state = 'cancelled' end
    if state ~= 'succeeded' and not (before[1] == 1 and END[state]) then
      left[#left + 1] = before[n]
      if END[state] then redis.call('ZADD', chores, now, 'after:' .. before[n] .. ':' .. state)
      -- Of a score beyond all waits of callers; see finish.
      else redis.call('ZADD', waited, 9000000000000000, before[n]) end
    end
  end
  if #left == 0 then return line end
  for n = 2, #line, 2 do redis.call('HSET', job .. line[n], 'st', 'blocked', 'pending', #left) end
  for _, id in ipairs(left) do zadd_all(after .. id, line) end
  redis.call('HINCRBY', totals, 'blocked', #line / 2)
  return {}
end

-- Whether an end that is to come, or the chore of one that was, frees a job that waits.
local function will_be_freed(id, ids)
  for other in string.gmatch(ids, '%w+') do
    if redis.call('ZSCORE', after .. other, id) then
      local state = redis.pcall('HGET', job .. other, 'st')
      if type(state) == 'string' and not END[state] and redis.call('ZSCORE', waited, other) then return true end
      for ended in pairs(END) do
        if redis.call('ZSCORE', chores, 'after:' .. other .. ':' .. ended) then return true end
      end
    end
  end
end
