-- Refill: further ticks of schedules are kept, which a dispatcher reckoned, unless another one did so before.
-- include tick_note
-- removes first ticking
-- keys    ticking
-- arg     rows    packed  {name, version, last known tick, its ticks (nominal and due time of each, two doubles),
--                         missed ticks that are left out, 1 if there were more, 1 if these are the last} each
-- route   desk
-- return  {how many schedules were refilled, now, when the next tick is due or 0}
local count = 0
local function refill(row)
  local name, version, known, more, passed, uncounted, final = unpack(row)
  local f = redis.call('HMGET', plan .. name, 'version', 'known', 'ticks', 'paused', 'ended')
  if tonumber(f[1]) == version and tonumber(f[2]) == known and not f[4] and not f[5] then
    local ticks, last = (f[3] or '') .. more, more ~= '' and struct.unpack('<d', more, #more - 15) or known
    if passed > 0 or uncounted == 1 then
      note_tick(name, known, 'missed', uncounted == 1 and 'these and earlier ones' or 'a later tick was due', passed)
    end
    redis.call('HSET', plan .. name, 'ticks', ticks, 'known', last, 'seen', now)
    if final == 1 then redis.call('HSET', plan .. name, 'final', 1) end
    redis.call('ZADD', ticking, ticks ~= '' and struct.unpack('<d', ticks, 9) or now, name)
    count = count + 1
  end
end
-- A record that cannot be read must not hold up the others; see fire.
for _, row in ipairs(rows) do pcall(refill, row) end
return {count, now, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0}
