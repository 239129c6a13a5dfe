-- Tick: a tick of a schedule makes its job, unless another one of the schedule is at work.
-- The id of the job is made of the schedule's name and the tick, so that the same tick never makes two.
-- include withdraw unique_store tick_note
-- keys    turn chain
-- Jobs that wait with the policy buffer_all.
local BUFFER = 1000
-- What start_tick takes of a schedule. digits: ten, of its name, for the ids of its jobs.
-- rules: {head of its jobs, missed, within, overlap, keep, name that its jobs hold or '', pause_after or 0}, packed.
local WORK = {'rules', 'args', 'digits'}
local SHARD = tonumber(string.match(prefix, ':(%d+)}:$'))

-- The last two digits of an id, shard and kind: of an ordered job, a named one, one that is both, and one of neither.
local function kind(bits) return code_of(SHARD % 128 + bits * 32, 2) end
local ORDERED, NAMED, BOTH, PLAIN = kind(8), kind(4), kind(12), kind(0)

-- The result is kept for the next tick.
local function kept(work_out)
  return setmetatable({}, {__index = function(known, of)
    known[of] = work_out(of)
    return known[of]
  end})
end

local RULES = kept(cmsgpack.unpack)
-- The time of an id: eight digits of steps of 5 ms.
local OF_TIME = kept(function(time) return code_of(time, 8) end)

local ENDED = {succeeded = true, failed = true, cancelled = true, quarantined = true}

-- Whether the job may come to be: at once or after the one at work. Else why not.
local function admitted(key, overlap, ttl)
  if overlap == 'allow_all' then return true end
  local holder = redis.call('GET', turn .. key)
  local state = holder and redis.pcall('HGET', job .. holder, 'st')
  if type(state) ~= 'string' or ENDED[state] then return true end
  local behind = redis.call('ZCARD', chain .. key)
  if overlap == 'cancel_other' then
    for _, id in ipairs(redis.call('ZRANGE', chain .. key, 0, BUFFER)) do withdraw(id, ttl) end
    withdraw(holder, ttl)
    return true
  elseif overlap == 'buffer_one' and behind == 0 or overlap == 'buffer_all' and behind < BUFFER then
    return true
  end
  return false, holder
end

-- Returns ran | skipped | twice, and the id of the job, or of the one that is in its way. work: the values of WORK.
-- overlap: instead of the schedule's own policy, or empty. nth: 0 for the tick itself; other jobs of it have more.
local function start_tick(name, tick, work, overlap, nth)
  local key, head, _, _, policy, keep, held_name = 'cron:' .. name, unpack(RULES[work[1]])
  if overlap ~= '' then policy = overlap end
  local is_ordered, is_named = policy ~= 'allow_all', held_name ~= ''
  -- An id but for its kind: the time of the tick, digits of the name, one that counts jobs of the same tick.
  local stem = OF_TIME[math.floor(tick / 5000)] .. work[3] .. code_of(nth, 1)
  local id, at = stem .. (is_ordered and (is_named and BOTH or ORDERED) or is_named and NAMED or PLAIN), job .. stem
  -- Of any kind: the options may have changed since it ran.
  if redis.call('EXISTS', at .. ORDERED, at .. NAMED, at .. BOTH, at .. PLAIN) > 0 then return 'twice', id end
  local may, holder = admitted(key, policy, keep)
  if not may then return 'skipped', holder end
  if is_named then
    -- Another copy, since it is changed.
    head = cmsgpack.unpack(work[1])[1]
    if is_ordered then
      local fields = head[6]
      fields[#fields + 1], fields[#fields + 2], head[7] = 'key', key, key
    end
    holder = naming().store_named(id, held_name, work[2], head)
    if holder then return 'skipped', holder end
  else
    local queue, priority, _, _, ends, fields = unpack(head)
    local record, line = {'args', work[2], 'st', 'ready', unpack(fields)}, {now - priority * 600000000, id}
    if is_ordered then record[#record + 1], record[#record + 2] = 'key', key end
    if ends > 0 then record[#record + 1], record[#record + 2] = 'expires', now + ends end
    redis.call('HSET', job .. id, unpack(record))
    if is_ordered then line = turns().await_turns(key, line) end
    if #line > 0 then line_up(id, queue, line[1]) end
  end
  return 'ran', id
end
