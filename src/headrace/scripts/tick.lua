-- Tick: a tick of a schedule makes its job, unless another one of the schedule is at work. Included, never run alone.
-- The id of the job is made of the schedule's name and the tick, so that the same tick never makes two.
-- include ids
-- include withdraw
-- include unique_store
-- include tick_note
-- clock   now
-- derive  job      hash    job:<id>
-- derive  turn     string  turn:<key>
-- derive  chain    zset    chain:<key>
-- Jobs that wait with the policy buffer_all.
local BUFFER = 1000
-- What start_tick takes of a schedule.
local WORK = {'head', 'args', 'overlap', 'keep', 'unique'}
local SHARD = tonumber(string.match(prefix, ':(%d+)}:$'))

local function digit(n) return string.sub('0123456789abcdefghjkmnpqrstvwxyz', n + 1, n + 1) end
-- Kept for the next tick: two digits of a hash as one of an id, and milliseconds as nine.
local OF_BYTE = setmetatable({}, {__index = function(known, byte)
  known[byte] = digit(tonumber(byte, 16) % 32)
  return known[byte]
end})
local OF_TIME = setmetatable({}, {__index = function(known, time)
  local text, rest = '', time
  for _ = 1, 9 do
    text = digit(rest % 32) .. text
    rest = math.floor(rest / 32)
  end
  known[time] = text
  return text
end})

-- Milliseconds of the tick, ten digits of the name, one that counts jobs of the same tick, two of shard and kind.
-- Returns the ids of its ordered, its named, its ordered and named job, and of the one that is neither: the options may have changed since it ran.
local function tick_ids(name, tick, nth)
  local time = math.floor(tick / 1000)
  local hash = string.sub(redis.sha1hex(name .. ':' .. string.format('%.0f', time)), 1, 20)
  local stem, shard, last = OF_TIME[time] .. string.gsub(hash, '..', OF_BYTE) .. digit(nth), math.floor(SHARD / 32) % 4, digit(SHARD % 32)
  return stem .. digit(shard + 8) .. last, stem .. digit(shard + 4) .. last, stem .. digit(shard + 12) .. last, stem .. digit(shard) .. last
end

local ENDED = {succeeded = true, failed = true, cancelled = true, quarantined = true}
local function at_work(key)
  local holder = redis.call('GET', turn .. key)
  local state = holder and redis.pcall('HGET', job .. holder, 'state')
  return type(state) == 'string' and not ENDED[state] and holder
end

-- Those that wait, and the one at work, end or are asked to.
local function cancel_others(key, holder, ttl)
  for _, id in ipairs(redis.call('ZRANGE', chain .. key, 0, BUFFER)) do withdraw(id, ttl) end
  withdraw(holder, ttl)
end

-- Whether the job may come to be: at once or after the one at work. Else why not.
local function admitted(key, overlap, ttl)
  if overlap == 'allow_all' then return true end
  local holder = at_work(key)
  if not holder then return true end
  local behind = redis.call('ZCARD', chain .. key)
  if overlap == 'cancel_other' then
    cancel_others(key, holder, ttl)
    return true
  elseif overlap == 'buffer_one' and behind == 0 or overlap == 'buffer_all' and behind < BUFFER then
    return true
  end
  return false, holder
end

-- Returns ran | skipped | twice, and the id of the job, or of the one that is in its way.
-- work: the values of WORK. overlap: instead of the schedule's own policy, or empty. nth: 0 for the tick itself; other jobs of it have more.
local function start_tick(name, tick, work, overlap, nth)
  local key = 'cron:' .. name
  local policy = overlap ~= '' and overlap or work[3] or 'skip'
  local is_ordered, is_named = policy ~= 'allow_all', work[5] and true
  local ordered, named, both, plain = tick_ids(name, tick, nth)
  local id = is_ordered and (is_named and both or ordered) or is_named and named or plain
  if redis.call('EXISTS', job .. ordered, job .. named, job .. both, job .. plain) > 0 then return 'twice', id end
  local may, holder = admitted(key, policy, tonumber(work[4]) or 0)
  if not may then return 'skipped', holder end
  local head = cmsgpack.unpack(work[1])
  local queue, priority, _, _, ends, fields = unpack(head)
  if is_ordered then
    fields[#fields + 1] = 'key'
    fields[#fields + 1] = key
    head[7] = key
  end
  if is_named then
    holder = naming().store_named(id, work[5], work[2], head)
    if holder then return 'skipped', holder end
  else
    if ends > 0 then
      fields[#fields + 1] = 'expires'
      fields[#fields + 1] = now + ends
    end
    redis.call('HSET', job .. id, 'args', work[2], 'state', 'ready', unpack(fields))
    local line = {now - priority * 600000000, id}
    if is_ordered then line = turns().await_turns(key, line) end
    if #line > 0 then line_up(id, queue, line[1]) end
  end
  return 'ran', id
end
