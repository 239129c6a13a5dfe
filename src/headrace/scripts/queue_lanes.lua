-- Queue lanes: the lanes in which limited jobs of a queue wait.
-- include slice
-- keys    classes class
-- Turns of lanes that are behind a gate are above this; see lane_classes.
local BEHIND_GATE = 2 ^ 50

-- At most this many lanes behind a place: {place, lane} of each, class by class and by their turns. A place is '<turn>
-- <lane>', empty for the first one. A turn only grows, also while a gate closes and opens, and a place keeps the turn.
-- So none is passed over while jobs start, and one that is gone is a place still.
local function queue_lanes(queue, place, most)
  local found, turn, last = {}, string.match(place, '^(%S+) (.*)$')
  local from = last and string.match(last, '^[^|]*|([^|]*)') or ''
  local all = redis.call('HKEYS', classes .. queue)
  table.sort(all)
  for _, limits in ipairs(all) do
    -- With a bar behind it: the turn of a class.
    if #found < most and limits >= from and string.sub(limits, -1) ~= '|' then
      local rows = {}
      for _, base in ipairs({0, BEHIND_GATE}) do
        local low, high = base == 0 and '-inf' or base, base == 0 and '(' .. BEHIND_GATE or '+inf'
        local after = last and limits == from and string.format('%.17g', base + turn) or ''
        local _, flat = slice(class .. queue .. '|' .. limits, after, last or '', 0, most - #found, 0, low, high)
        for n = 1, #flat, 2 do rows[#rows + 1] = {flat[n + 1] - base, flat[n]} end
      end
      table.sort(rows, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
      for n = 1, math.min(#rows, most - #found) do
        found[#found + 1] = {string.format('%.17g %s', rows[n][1], rows[n][2]), rows[n][2]}
      end
    end
  end
  return found
end
