-- Fire: due ticks of schedules make their jobs, each once; what was missed or would overlap is noted in the history.
-- include due_ticks declarers
-- removes first ticking
-- keys    ticking schedules
-- arg     limit      int   most ticks, at most 500; those of the last schedule may be more
-- route   desk
-- return  {ticks that ran, now, when the next tick is due or 0, {name, version, about, last known tick, missed ticks
--         wanted, ...} of those that need more ticks, names of those whose records cannot be read}
-- After how many microseconds a schedule is looked at again that waits for ticks, has no code that declares it, cannot
-- be read, has ended. TICK: bytes of a tick, its nominal and its due time; with less than LOW of them it needs more.
local RETRY, WAIT, BROKEN, SHOWN, TICK, LOW = 5000000, 30000000, 60000000, 7 * 86400000000, 16, 8
local ran, seen, wanting, broken = 0, 0, {}, {}

-- Whether a schedule needs more ticks; the answer asks for them.
local function wants(name, rules)
  -- All that may fail comes before anything is written down: half a row would shift those of the others.
  local missed, n, p = RULES[rules][2], #wanting, redis.call('HMGET', plan .. name, 'version', 'about', 'known',
    'final')
  if not (p[1] and p[2] and p[3]) then error('no record') end
  if p[4] then return false end
  wanting[n + 1], wanting[n + 2], wanting[n + 3], wanting[n + 4] = name, p[1], p[2], p[3]
  wanting[n + 5] = missed == 'all' and MOST_MISSED or 1
  return true
end

-- {tick, due, ...} of the ticks that are due, where those begin that are not, and when the first of these is due.
local function split(ticks)
  local due, at = {}, 1
  while at <= #ticks do
    local tick, time, next_at = struct.unpack('<dd', ticks, at)
    if not (tick <= time) then error('no ticks') end
    if time > now then return due, at, time end
    due[#due + 1], due[#due + 2], at = tick, time, next_at
  end
  return due, at
end

-- The fields of a schedule whose due ticks ran: what is left of it. Also returns whether it has ended.
local function after(f, rest, count)
  local left, found = tonumber(f[2]), {'runs', (tonumber(f[4]) or 0) + count.ran, 'seen', now}
  local has_ended = not count.paused and (left == count.ran or rest == '')
  if left then found[#found + 1], found[#found + 2] = 'left', left - count.ran end
  if count.last and RULES[f[5]][7] > 0 then found[#found + 1], found[#found + 2] = 'last_job', count.last end
  if has_ended then rest, found[#found + 1], found[#found + 2] = '', 'ended', now end
  found[#found + 1], found[#found + 2] = 'ticks', rest
  return found, has_ended
end

-- One that ended is shown for a while. Returns when its timer is due next, or nil.
local function show(name, ended)
  if ended + SHOWN > now then return ended + SHOWN end
  -- What code declares would come to be anew; the walk deletes it when no code does.
  if redis.call('HGET', plan .. name, 'source') == 'code' then return now + SHOWN end
  redis.call('ZREM', schedules, name)
  redis.call('UNLINK', plan .. name, history .. name)
  return nil
end

-- Returns when its timer is due next; nil: it has none.
local function fire(name)
  local f = redis.call('HMGET', plan .. name, unpack(FIELDS))
  if not f[1] then return nil end
  local due, at, next_due = split(f[1])
  if not next_due then
    local ended = redis.call('HGET', plan .. name, 'ended')
    if ended then return show(name, tonumber(ended)) end
    -- Not before the ticks reach beyond now: which one is the newest is not known.
    if wants(name, f[5]) then return now + RETRY end
  end
  -- As if no worker were there: the missed policy says what becomes of these ticks if its code comes back.
  if #due > 0 and f[8] == 'code' and not declared(name, f[9] or '', f[10]) then
    return standing(name, {f[8], f[9], f[10], unpack(redis.call('HMGET', plan .. name, 'undeclared',
      'orphaned'))}) == 'waits' and now + WAIT or now + SHOWN
  end
  local rest, count = string.sub(f[1], at), {ran = 0}
  local ok, wrong = pcall(run_due, name, f, due, count)
  local fields, has_ended = after(f, rest, count)
  -- Also where that failed half-way: what ran must not run twice.
  redis.call('HSET', plan .. name, unpack(fields))
  ran, seen = ran + count.ran, seen + #due / 2
  if not ok then error(wrong, 0) end
  if count.paused then return nil end
  if has_ended then return now + SHOWN end
  if #rest < TICK * LOW then wants(name, f[5]) end
  return next_due
end

local timers = {}
for _, name in ipairs(redis.call('ZRANGE', ticking, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
  if seen < limit then
    local ok, due = pcall(fire, name)
    -- Scripts do not roll back: a record that cannot be read must not hold up the others, nor fall silent.
    if not ok then due, broken[#broken + 1] = now + BROKEN, name end
    if due then timers[#timers + 1], timers[#timers + 2] = due, name
    else redis.call('ZREM', ticking, name) end
  end
end
zadd_all(ticking, timers)
return {ran, now, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0, wanting, broken}
