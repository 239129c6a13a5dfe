-- Tick note: the history of a schedule tells what became of a tick.
-- keys    history=ticks plan=schedule
-- Ticks that a history keeps.
local KEPT = 100

-- A count that is full, or no number, stops nothing else.
local function count_ticks(name, what, count) redis.pcall('HINCRBY', plan .. name, 'ticks_' .. what, count) end

-- Rows are {tick, when, what became of it, id or why, how many ticks this row tells of}.
local function note_tick(name, tick, what, text, count)
  local size = redis.call('RPUSH', history .. name, cmsgpack.pack({tick, now, what, text or '', count or 1}))
  if size > KEPT then redis.call('LTRIM', history .. name, -KEPT, -1) end
  if what ~= 'ran' then count_ticks(name, what, count or 1) end
end

-- Whether the history tells that a tick ran: a clock that was set back brings its time again.
local function ran_before(name, tick)
  for _, row in ipairs(redis.call('LRANGE', history .. name, 0, -1)) do
    local read, one = pcall(cmsgpack.unpack, row)
    if read and tonumber(one[1]) == tick and (one[3] == 'ran' or one[3] == 'twice') then return true end
  end
  return false
end
