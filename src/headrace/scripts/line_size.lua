-- Line size: how many jobs are ready in a queue: those in lanes, too, and without the classes that stand in its line. Included, never run alone.
-- lazy    limiting line_size
-- derive  ready    zset  ready:<queue>
-- derive  classes  hash  classes:<queue>
local function line_size(queue)
  local size, counts = redis.call('ZCARD', ready .. queue), redis.call('HGETALL', classes .. queue)
  for n = 1, #counts, 2 do
    if string.sub(counts[n], -1) ~= '|' then
      size = size + tonumber(counts[n + 1])
      if redis.call('ZSCORE', ready .. queue, '~' .. counts[n]) then size = size - 1 end
    end
  end
  return size
end
