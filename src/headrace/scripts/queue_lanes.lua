-- Queue lanes: the lanes in which limited jobs of a queue wait. Included, never run alone.
-- derive  classes  hash  classes:<queue>
-- derive  class    zset  class:<class>
-- Their names in order, those behind one of them; of each class at most so many are looked at, those whose turn comes first.
local function queue_lanes(queue, behind, most)
  local names = {}
  for _, limits in ipairs(redis.call('HKEYS', classes .. queue)) do
    -- With a bar behind it: the turn of a class.
    if string.sub(limits, -1) ~= '|' then
      for _, name in ipairs(redis.call('ZRANGE', class .. queue .. '|' .. limits, 0, most - 1)) do
        if name > behind then names[#names + 1] = name end
      end
    end
  end
  table.sort(names)
  return names
end
