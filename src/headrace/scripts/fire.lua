-- Fire: due ticks of schedules make their jobs, each once; what was missed or would overlap is noted in the history.
-- include due_ticks
-- clock   now
-- removes first ticking
-- commit  batch
-- many    ZADD
-- key     ticking    zset  ticking
-- key     schedules  zset  schedules
-- derive  plan       hash  schedule:<name>
-- arg     limit      int   most ticks, at most 500; those of the last schedule may be more
-- return  {ticks that ran, now, when the next tick is due or 0, {name, version, about, last known tick, missed ticks wanted, ...} of those that need more ticks, names of those whose records cannot be read,
--         {name, what became of ticks, how many, ...}}
-- A schedule that waits for ticks is looked at again after RETRY (microseconds), one that cannot be read after BROKEN; SHOWN: after its end.
local RETRY, BROKEN, LOW, SHOWN = 5000000, 60000000, 8, 7 * 86400000000
local ran, seen, wanting, broken = 0, 0, {}, {}

local function want(name, f)
  local n = #wanting
  wanting[n + 1], wanting[n + 2], wanting[n + 3], wanting[n + 4] = name, f[7], f[8], f[9]
  wanting[n + 5] = f[3] == 'all' and MOST_MISSED or 1
end

-- The fields of a schedule whose due ticks ran: what is left of it. Also returns whether it has ended.
local function after(f, rest, count)
  local left, found = tonumber(f[5]), {'ticks', #rest > 0 and cmsgpack.pack(rest) or '', 'runs', (tonumber(f[14]) or 0) + count.ran, 'seen', now}
  local has_ended = not count.paused and (left == count.ran or #rest == 0)
  if left then found[#found + 1], found[#found + 2] = 'left', left - count.ran end
  if f[12] and count.last then found[#found + 1], found[#found + 2] = 'last_job', count.last end
  if has_ended then found[#found + 1], found[#found + 2] = 'ended', now end
  return found, has_ended
end

-- Returns when its timer is due next; nil: it has none.
local function fire(name)
  local f = redis.call('HMGET', plan .. name, unpack(FIELDS))
  if not f[9] or f[6] then return nil end
  if f[10] then
    if tonumber(f[10]) + SHOWN > now then return tonumber(f[10]) + SHOWN end
    -- What code declares would come to be anew.
    if f[11] == 'code' then return nil end
    redis.call('ZREM', schedules, name)
    redis.call('UNLINK', plan .. name, history .. name)
    return nil
  end
  local ticks = f[1] and f[1] ~= '' and cmsgpack.unpack(f[1]) or {}
  -- Not before the ticks reach beyond now: which one is the newest is not known.
  if not f[2] and (#ticks == 0 or ticks[#ticks] <= now) then
    want(name, f)
    return now + RETRY
  end
  local due, rest, count = {}, {}, {ran = 0}
  for n, value in ipairs(ticks) do
    local list = ticks[n - (n + 1) % 2 + 1] <= now and due or rest
    list[#list + 1] = value
  end
  local ok, wrong = pcall(run_due, name, f, due, count)
  local fields, has_ended = after(f, rest, count)
  -- Also where that failed half-way: what ran must not run twice.
  redis.call('HSET', plan .. name, unpack(fields))
  ran, seen = ran + count.ran, seen + #due / 2
  if not ok then error(wrong, 0) end
  if count.paused then return nil end
  if has_ended then return now + SHOWN end
  if not f[2] and #rest < 2 * LOW then want(name, f) end
  return rest[2]
end

local timers = {}
for _, name in ipairs(redis.call('ZRANGE', ticking, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
  if seen < limit then
    local ok, due = pcall(fire, name)
    -- Scripts do not roll back: a record that cannot be read must not hold up the others, nor fall silent.
    if not ok then due, broken[#broken + 1] = now + BROKEN, name end
    if due then
      timers[#timers + 1], timers[#timers + 2] = due, name
    else
      redis.call('ZREM', ticking, name)
    end
  end
end
zadd_all(ticking, timers)
return {ran, now, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0, wanting, broken, batch.ticks_told}
