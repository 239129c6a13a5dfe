-- Gate numbers: what a limit says: its numbers by code, and over them those of an operator. Included, never run alone.
-- include rates
-- lazy    limiting
-- keys    limit_at=limit overrides_at=overrides
-- batch   numbers  {}  by limit: its numbers
-- Numbers with what is reckoned from them: microseconds between two starts, and how late a start may be made good.
local function reckoned(found)
  found.kind = found.rate and rate_of(found.shape or 'even')
  if not found.kind then return found end
  found.step, found.cell, found.changes = found.per / found.rate, found.per / 128, {}
  found.slack = math.max(10000, found.per / 100) + (found.burst or 0) * found.step
  for word in string.gmatch(found.zone or '', '%S+') do found.changes[#found.changes + 1] = tonumber(word) * 1000000 end
  return found
end

-- Numbers with an operator's over them, as long as these count: {part: {end or 0, {field, value or '', ...}}}.
local function overlaid(found, packed)
  local own = {}
  for field, value in pairs(found) do own[field] = value end
  for _, part in pairs(cmsgpack.unpack(packed)) do
    for n = 1, part[1] > 0 and part[1] <= now and 0 or #part[2], 2 do
      own[part[2][n]] = tonumber(part[2][n + 1]) or part[2][n + 1] ~= '' and part[2][n + 1] or nil
    end
  end
  return reckoned(own)
end

-- The numbers of a limit: those that code declares, and over them those of an operator.
local function numbers_of(name)
  local found = batch.numbers[name]
  if found then return found end
  found = {}
  local flat = redis.call('HGETALL', limit_at .. name)
  for n = 1, #flat, 2 do found[flat[n]] = tonumber(flat[n + 1]) or flat[n + 1] end
  local over = found.overrides and redis.call('HGET', overrides_at .. name, '*')
  found = over and overlaid(found, over) or reckoned(found)
  -- All values are paused at one gate, '<limit>:*', so each of their own knows nothing of it.
  if found.by then
    found.all = {paused = found.paused}
    found.paused = nil
  end
  found.star = name .. ':*'
  batch.numbers[name] = found
  return found
end

-- The numbers of one gate of a limit, where those of its value, or of all of them, are others.
local function numbers_for(found, name, limit_name)
  if name == found.star then return found.all or {} end
  local value = string.sub(name, #limit_name + 2)
  local over = found.by and found.overrides and redis.call('HGET', overrides_at .. limit_name, value)
  return over and overlaid(found, over) or found
end
