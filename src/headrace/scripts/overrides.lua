-- Overrides: what an operator says of a limit, or of one of its values, over what code declares.
-- Included, never run alone.
-- lazy    limiting overrule
-- keys    timers limit_at=limit overrides_at=overrides
local function pause_until(ends) return {'paused', string.format('%.0f', ends)} end

-- Puts parts, {part, microseconds that it counts or 0, {field, value or '', ...}, ...}, over the numbers of a value
-- ('*': of the limit), and takes others away. What is over is taken away, too. Returns which parts there were.
local function overrule(name, value, parts, gone)
  local packed, had, nearest = redis.call('HGET', overrides_at .. name, value), {}, math.huge
  local kept = packed and cmsgpack.unpack(packed) or {}
  for part, one in pairs(kept) do
    -- The clock was set back.
    if one[1] > now + one[3] then
      one[1] = now + one[3]
      if part == 'paused' then one[2] = pause_until(one[1]) end
    end
    if one[1] > 0 and one[1] <= now then kept[part] = nil else had[part] = true end
  end
  for _, part in ipairs(gone) do kept[part] = nil end
  for n = 1, #parts, 3 do
    local ends = parts[n + 1] > 0 and now + parts[n + 1] or 0
    kept[parts[n]] = {ends, parts[n] == 'paused' and pause_until(ends) or parts[n + 2], parts[n + 1]}
  end
  for _, one in pairs(kept) do
    if one[1] > 0 then nearest = math.min(nearest, one[1]) end
  end
  if next(kept) then redis.call('HSET', overrides_at .. name, value, cmsgpack.pack(kept))
  else redis.call('HDEL', overrides_at .. name, value) end
  local count, timer = redis.call('HLEN', overrides_at .. name), 'limit:' .. name .. ':' .. value
  if count > 0 then
    redis.call('HSET', limit_at .. name, 'overrides', count)
  else
    redis.call('HDEL', limit_at .. name, 'overrides')
  end
  if nearest < math.huge then redis.call('ZADD', timers, nearest, timer) else redis.call('ZREM', timers, timer) end
  return had
end
