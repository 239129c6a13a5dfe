-- Why, others: what a job waits for: the one that has its name, the one of its key whose turn it is, those that it
-- follows, parents that have not succeeded, or the gates of its lane.
-- include ids lanes
-- keys    job after lane
-- Parents that are looked at, and told of.
local PARENTS, TOLD = 1000, 5

-- Rows are {id, state or empty: not stored, task, what its end means: policy of its edge, packed facts of a node}.
local function row_of(other)
  local f = redis.pcall('HMGET', job .. other, 'st', 'task', 'facts')
  if f.err then return {other, '', '', '', ''} end
  return {other, f[1] or '', f[2] or '', '', f[3] or ''}
end

-- Of the jobs that it follows, the first whose end has not been counted.
local function followed(id, ids)
  local found = {}
  for other in string.gmatch(ids, '%w+') do
    if #found < TOLD and redis.call('ZSCORE', after .. other, id) then found[#found + 1] = row_of(other) end
  end
  return found
end

-- The letter of the edge from a parent to a child: s stop, c continue, k skip.
local function policy_of(parent, id)
  local children, code = redis.call('HGET', job .. parent, 'children') or '', string.sub(id, 16, 19)
  local at = string.find(children, code, 1, true)
  while at and at % 5 ~= 1 do at = string.find(children, code, at + 1, true) end
  return at and string.sub(children, at + 4, at + 4) or ''
end

-- Of the first parents those that have not ended; of those that have, and did not succeed, what that means for the job.
local function unfinished(id, parents)
  local waits, ended = {}, {}
  for n = 1, math.min(#parents, PARENTS * 4), 4 do
    local other = node_of(id, string.sub(parents, n, n + 3))
    local state = redis.pcall('HGET', job .. other, 'st')
    if type(state) ~= 'string' then state = '' end
    if state == 'failed' or state == 'cancelled' or state == 'quarantined' or state == 'skipped' then
      if #ended < TOLD then
        ended[#ended + 1] = row_of(other)
        ended[#ended][4] = policy_of(other, id)
      end
    elseif state ~= 'succeeded' and #waits < TOLD then
      waits[#waits + 1] = row_of(other)
    end
  end
  for _, row in ipairs(ended) do waits[#waits + 1] = row end
  return waits
end

-- Its score in the lane, how many are before it there, and its gates: {limit, value ('*': all), when it opens: 0 open,
-- -1 when a job of it ends or it is resumed, how many hold it, why it is closed: paused | full | refused | rate} each.
local function look_at_lane(name, id)
  local l, met = limiting(), {}
  local passes = l.passed_by(name)
  passes[3] = l.class_of(name).bars
  for _, list in ipairs(passes) do
    for _, one in ipairs(list) do
      local limit, value = string.match(one.name, '^([^:]*):(.*)$')
      local opens = l.closed_until(one)
      local why = one.limit.paused and 'paused' or opens == math.huge and 'full' or one.till > now and 'refused'
        or 'rate'
      met[#met + 1] = {limit, value, opens and (opens == math.huge and -1 or opens) or 0, one.held, why}
    end
  end
  return redis.call('ZSCORE', lane .. name, id), redis.call('ZRANK', lane .. name, id), met
end
