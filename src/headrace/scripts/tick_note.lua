-- Tick note: the history of a schedule tells what became of a tick. Included, never run alone.
-- clock   now
-- derive  history  list  ticks:<name>  what became of the last ticks
-- Ticks that a history keeps.
local KEPT = 100

-- Rows are {tick, when, what became of it, id or why, how many ticks this row tells of}.
local function note_tick(name, tick, what, text, count)
  redis.call('RPUSH', history .. name, cmsgpack.pack({tick, now, what, text or '', count or 1}))
  redis.call('LTRIM', history .. name, -KEPT, -1)
end
