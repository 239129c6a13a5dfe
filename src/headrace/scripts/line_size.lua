-- Line size: how many jobs are ready in a queue: those in lanes, too, and without the classes that stand in its line.
-- lazy    limiting line_size
-- keys    ready classes
-- Also how many are behind limits, in classes that are not in the line; since when the first of these waits, or nil.
local function line_size(queue)
  local size, counts, held, since = redis.call('ZCARD', ready .. queue), redis.call('HGETALL', classes .. queue), 0, nil
  local met = {}
  for n = 1, #counts, 2 do met[counts[n]] = counts[n + 1] end
  for limits, count in pairs(met) do
    if string.sub(limits, -1) ~= '|' then
      size = size + tonumber(count)
      if redis.call('ZSCORE', ready .. queue, '~' .. limits) then size = size - 1
      else
        held = held + tonumber(count)
        local pace = tonumber(string.match(met[limits .. '|'] or '', ' (%S+)$'))
        since = pace and math.min(pace, since or pace) or since
      end
    end
  end
  return size, held, since
end
