-- Refill: further ticks of schedules are kept, which a dispatcher reckoned, unless another one did so before.
-- include tick_note
-- clock   now
-- removes first ticking
-- key     ticking zset    ticking
-- derive  plan    hash    schedule:<name>
-- arg     rows    packed  {name, version, last known tick, {tick, due, ...}, missed ticks that are left out, 1 if there were more, 1 if these are the last} each
-- return  {how many schedules were refilled, now, when the next tick is due or 0}
local count = 0
for _, row in ipairs(rows) do
  local name, version, known, more, passed, uncounted, final = unpack(row)
  local f = redis.call('HMGET', plan .. name, 'version', 'known', 'ticks', 'paused', 'ended')
  if tonumber(f[1]) == version and tonumber(f[2]) == known and not f[4] and not f[5] then
    local ticks = f[3] and f[3] ~= '' and cmsgpack.unpack(f[3]) or {}
    for _, value in ipairs(more) do ticks[#ticks + 1] = value end
    if passed > 0 or uncounted == 1 then
      note_tick(name, known, 'missed', uncounted == 1 and 'these and earlier ones' or 'a later tick was due', passed)
    end
    redis.call('HSET', plan .. name, 'ticks', #ticks > 0 and cmsgpack.pack(ticks) or '', 'known', more[#more - 1] or known, 'seen', now)
    if final == 1 then redis.call('HSET', plan .. name, 'final', 1) end
    redis.call('ZADD', ticking, ticks[2] or now, name)
    count = count + 1
  end
end
return {count, now, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0}
