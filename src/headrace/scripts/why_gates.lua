-- Why, gates: the lane in which a limited job waits, and what its gates say. Included, never run alone.
-- include lanes
-- derive  lane  zset  lane:<lane>
-- Its score in the lane, how many are before it there, and its gates: {limit, value, when it opens: 0 open, -1 when a job of it ends, how many run}
-- each.
local function look_at_lane(name, id)
  local met = {}
  for _, list in ipairs(limiting().passed_by(name)) do
    for _, one in ipairs(list) do
      local limit, value = string.match(one.name, '^([^:]*):(.*)$')
      local opens = limiting().closed_until(one)
      met[#met + 1] = {limit, value, opens and (opens == math.huge and -1 or opens) or 0, one.held}
    end
  end
  return redis.call('ZSCORE', lane .. name, id), redis.call('ZRANK', lane .. name, id), met
end
