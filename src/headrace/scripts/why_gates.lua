-- Why, gates: the lane in which a limited job waits, and what its gates say. Included, never run alone.
-- include lanes
-- keys    lane
-- Its score in the lane, how many are before it there, and its gates: {limit, value ('*': of all values), when it
-- opens: 0 open, -1 when a job of it ends or it is resumed, how many hold it, why it is closed: paused | full | refused
-- | rate} each.
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
