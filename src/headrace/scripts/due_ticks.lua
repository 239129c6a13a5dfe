-- Due ticks: which of the due ticks of a schedule make their jobs; the history tells of them and of the others. Where
-- its jobs failed too often, one after the other, the schedule is paused.
-- include tick telling
-- keys    plan=schedule
-- What of a schedule its ticks go by.
local FIELDS = {'ticks', 'left', 'again_to', 'runs', WORK[1], WORK[2], WORK[3], 'source', 'declared', 'fingerprint'}
-- A tick is late after so long (microseconds); of those that were missed this many run.
local LATE, MOST_MISSED = 30000000, 100

-- Whether the last jobs of a schedule failed, one after the other, so often (most) that it is paused now.
local function failed_too_often(name, most)
  local f = redis.call('HMGET', plan .. name, 'last_job', 'failing')
  if not f[1] then return false end
  local state, failing = redis.pcall('HGET', job .. f[1], 'st'), tonumber(f[2] or 0)
  if state == 'failed' or state == 'quarantined' then failing = failing + 1
  elseif state and not ENDED[state] then return false
  else failing = 0 end
  redis.call('HDEL', plan .. name, 'last_job')
  redis.call('HSET', plan .. name, 'failing', failing)
  if failing < most then return false end
  redis.call('HSET', plan .. name, 'paused', failing .. ' jobs failed, one after the other', 'paused_at', now)
  telling().happened('schedule_paused', {'schedule', name, 'why', failing .. ' jobs failed, one after the other'})
  return true
end

-- Whether one of several due ticks runs, and else why not.
local function chosen(rules, tick, due, is_last)
  local late = now - due > LATE
  if is_last and not late then return true end
  local missed, within = rules[2], rules[3]
  if missed == 'skip' or missed ~= 'all' and not is_last then
    return false, is_last and 'late' or 'a later tick was due'
  end
  if within > 0 and now - tick > within then return false, 'older than within' end
  return true
end

local function tell_missed(name, missed)
  local first = 1
  for n = 1, #missed, 2 do
    if missed[n + 3] ~= missed[n + 1] then
      local count = (n - first) / 2 + 1
      note_tick(name, missed[first], 'missed', missed[n + 1], count)
      telling().happened('schedule_missed', {'schedule', name, 'count', count, 'why', missed[n + 1]})
      first = n + 2
    end
  end
end

-- The due ticks of one schedule, oldest first: {tick, due, ...}. count: how many ran, the last job, whether it is
-- paused.
local function run_due(name, f, due, count)
  local work, rules, left, missed = {unpack(f, 5, 7)}, RULES[f[5]], tonumber(f[2]), {}
  for n = 1, #due, 2 do
    local runs, why = chosen(rules, due[n], due[n + 1], n == #due - 1)
    count.paused = runs and left ~= count.ran and rules[7] > 0 and failed_too_often(name, rules[7])
    if left == count.ran or count.paused then
      break
    elseif not runs or #due - n > 2 * MOST_MISSED then
      missed[#missed + 1], missed[#missed + 2] = due[n], why or 'too many'
    else
      tell_missed(name, missed)
      missed = {}
      if f[3] and due[n] <= tonumber(f[3]) and ran_before(name, due[n]) then
        -- No row of its own: it would push out what the history tells of others.
        count_ticks(name, 'twice', 1)
      else
        local what, text = start_tick(name, due[n], work, '', 0)
        note_tick(name, due[n], what, text, 1)
        if what == 'ran' then count.ran, count.last = count.ran + 1, text end
      end
    end
  end
  tell_missed(name, missed)
end
