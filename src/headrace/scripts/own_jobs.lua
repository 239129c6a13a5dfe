-- Own jobs: the built-in jobs that are stored; counts and lists leave them out. Included, never run alone.
-- keys    own job
-- Their ids, as keys of a table, and how many are in each state.
local function own_jobs()
  local ids, counts = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', own, 0, -1)) do
    local state = redis.pcall('HGET', job .. id, 'st')
    if type(state) == 'string' then ids[id], counts[state] = true, (counts[state] or 0) + 1 end
  end
  return ids, counts
end
