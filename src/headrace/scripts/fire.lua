-- Fire: due ticks of schedules make their jobs, each once; what was missed or would overlap is noted in the history.
-- include tick
-- include tick_failures
-- include telling
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
-- A tick is late after so long (microseconds); a schedule that waits for ticks is looked at again after RETRY; MOST_MISSED run; SHOWN: after its end.
local LATE, RETRY, BROKEN, LOW, MOST_MISSED, SHOWN = 30000000, 5000000, 60000000, 8, 100, 7 * 86400000000
local FIELDS = {'ticks', 'final', 'missed', 'within', 'left', 'paused', 'version', 'about', 'known', 'ended', 'source', 'pause_after', 'again_to', 'runs', unpack(WORK)}
local ran, seen, wanting, broken, told = 0, 0, {}, {}, {}

local function want(name, f)
  local n = #wanting
  wanting[n + 1], wanting[n + 2], wanting[n + 3], wanting[n + 4] = name, f[7], f[8], f[9]
  wanting[n + 5] = f[3] == 'all' and MOST_MISSED or 1
end

-- Whether one of several due ticks runs, and else why not.
local function chosen(f, tick, due, is_last)
  local late = now - due > LATE
  if is_last and not late then return true end
  local within = tonumber(f[4]) or 0
  if f[3] == 'skip' or f[3] ~= 'all' and not is_last then return false, is_last and 'late' or 'a later tick was due' end
  if within > 0 and now - tick > within then return false, 'older than within' end
  return true
end

local function tell(name, what, count)
  local n = #told
  told[n + 1], told[n + 2], told[n + 3] = name, what, count
end

local function note(name, tick, what, text, count)
  tell(name, what, count)
  note_tick(name, tick, what, text, count)
end

local function tell_missed(name, missed)
  local first = 1
  for n = 1, #missed, 2 do
    if missed[n + 3] ~= missed[n + 1] then
      local count = (n - first) / 2 + 1
      note(name, missed[first], 'missed', missed[n + 1], count)
      telling().happened('schedule_missed', {'schedule', name, 'count', count, 'why', missed[n + 1]})
      first = n + 2
    end
  end
end

-- The due ticks of one schedule, oldest first: {tick, due, ...}. count: how many ran, the job of the last one, whether the schedule is paused now.
local function run_due(name, f, due, count)
  local work, left, missed = {unpack(f, 15, 19)}, tonumber(f[5]), {}
  for n = 1, #due, 2 do
    local runs, why = chosen(f, due[n], due[n + 1], n == #due - 1)
    count.paused = runs and left ~= count.ran and f[12] and failed_too_often(name)
    if left == count.ran or count.paused then
      break
    elseif not runs or #due - n > 2 * MOST_MISSED then
      missed[#missed + 1], missed[#missed + 2] = due[n], why or 'too many'
    else
      tell_missed(name, missed)
      missed = {}
      if f[13] and due[n] <= tonumber(f[13]) and ran_before(name, due[n]) then
        -- No row of its own: it would push out what the history tells of others.
        tell(name, 'twice', 1)
      else
        local what, text = start_tick(name, due[n], work, '', 0)
        note(name, due[n], what, text, 1)
        if what == 'ran' then count.ran, count.last = count.ran + 1, text end
      end
    end
  end
  tell_missed(name, missed)
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
return {ran, now, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0, wanting, broken, told}
