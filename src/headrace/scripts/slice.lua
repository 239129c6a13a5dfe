-- Slice: a bounded piece of one sorted set, by position, by score or after an id; of the lanes of a queue.
-- keys    classes class
-- Returns its size and {id, score, ...}. By ranks only, so that what was passed over costs nothing.
local function slice(line, after, member, offset, limit, desc, low, high)
  local size = redis.call('ZCARD', line)
  local first = low == '-inf' and 0 or size - redis.call('ZCOUNT', line, low, '+inf')
  local last = (high == '+inf' and size or redis.call('ZCOUNT', line, '-inf', high)) - 1
  if after ~= '' then
    -- Equal scores are common (one chunk, one time), so a cursor names its id too and is found by rank: ties are
    -- neither read twice nor passed over, also when the id itself has left meanwhile.
    local passed = redis.call('ZRANK', line, member)
    if passed and tonumber(redis.call('ZSCORE', line, member)) == tonumber(after) then
      if desc == 0 then passed = passed + 1 end
    else
      local start = redis.call('ZCOUNT', line, '-inf', '(' .. after)
      local least, most = 0, redis.call('ZCOUNT', line, after, after)
      while least < most do
        local middle = math.floor((least + most) / 2)
        if redis.call('ZRANGE', line, start + middle, start + middle)[1] < member then least = middle + 1
        else most = middle end
      end
      passed = start + least
    end
    if desc == 1 then last = math.min(last, passed - 1) else first = math.max(first, passed) end
  end
  if desc == 1 then last = last - offset else first = first + offset end
  if limit <= 0 or last < first then return size, {} end
  if desc == 1 then
    local from = size - 1 - last
    return size, redis.call('ZREVRANGE', line, from, math.min(from + limit - 1, size - 1 - first), 'WITHSCORES')
  end
  return size, redis.call('ZRANGE', line, first, math.min(first + limit - 1, last), 'WITHSCORES')
end

-- Of {id, score, ...} what is a job and no class of lanes, at most this many.
local function only_jobs(rows, most)
  local ids = {}
  for n = 1, #rows, 2 do
    if string.byte(rows[n]) ~= 126 and #ids < 2 * most then ids[#ids + 1], ids[#ids + 2] = rows[n], rows[n + 1] end
  end
  return ids
end

-- At most this many lanes behind a place: {place, lane} of each, class by class and by their turns. A place is '<turn>
-- <lane>', empty for the first one. A turn only grows, also while a gate closes and opens, and a place keeps the turn.
-- So none is passed over while jobs start, and one that is gone is a place still.
local function queue_lanes(queue, place, most)
  -- Turns of lanes that are behind a gate are above this; see lane_classes.
  local BEHIND_GATE = 2 ^ 50
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
