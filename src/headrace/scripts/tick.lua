-- Tick: a tick of a schedule makes its job, unless another one of the schedule is at work. Included, never run alone.
-- The id of the job is made of the schedule's name and the tick, so that the same tick never makes two.
-- include ids
-- include withdraw
-- include unique_store
-- include tick_note
-- clock   now
-- derive  plan     hash    schedule:<name>
-- derive  job      hash    job:<id>
-- derive  turn     string  turn:<key>
-- derive  chain    zset    chain:<key>
-- Jobs that wait with the policy buffer_all, days that an ended schedule is shown.
local BUFFER, SHOWN = 1000, 7 * 86400000000
local WORK = {'head', 'args', 'overlap', 'keep', 'unique'}

-- Milliseconds of the tick, ten digits of the name, one that counts jobs of the same tick, two of shard and kind.
local function tick_id(name, tick, nth, ordered, named)
  local DIGITS = '0123456789abcdefghjkmnpqrstvwxyz'
  local function digit(n) return string.sub(DIGITS, n + 1, n + 1) end
  local text, rest = '', math.floor(tick / 1000)
  local hash = redis.sha1hex(name .. ':' .. string.format('%.0f', rest))
  for _ = 1, 9 do
    text = digit(rest % 32) .. text
    rest = math.floor(rest / 32)
  end
  for n = 1, 10 do text = text .. digit(tonumber(string.sub(hash, 2 * n - 1, 2 * n), 16) % 32) end
  local shard = tonumber(string.match(prefix, ':(%d+)}:$'))
  return text .. digit(nth) .. digit(math.floor(shard / 32) % 4 + (ordered and 8 or 0) + (named and 4 or 0)) .. digit(shard % 32)
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
  local holder = at_work(key)
  if not holder or overlap == 'allow_all' then return true end
  local behind = redis.call('ZCARD', chain .. key)
  if overlap == 'cancel_other' then
    cancel_others(key, holder, ttl)
    return true
  elseif overlap == 'buffer_one' and behind == 0 or overlap == 'buffer_all' and behind < BUFFER then
    return true
  end
  return false, holder
end

-- Returns ran | skipped | twice | gone, and the id of the job, or of the one that is in its way.
-- overlap: instead of the schedule's own policy, or empty. nth: 0 for the tick itself; other jobs of it have more.
local function start_tick(name, tick, overlap, nth)
  local f = redis.call('HMGET', plan .. name, unpack(WORK))
  if not f[1] then return 'gone', '' end
  local key = 'cron:' .. name
  local policy = overlap ~= '' and overlap or f[3] or 'skip'
  local ordered = policy ~= 'allow_all'
  local named = f[5] and true
  local id = tick_id(name, tick, nth, ordered, named)
  -- Its options may have changed since the same tick ran.
  local other = tick_id(name, tick, nth, not ordered, named)
  if redis.call('EXISTS', job .. id, job .. other, job .. tick_id(name, tick, nth, true, not named), job .. tick_id(name, tick, nth, false, not named)) > 0 then
    return 'twice', id
  end
  local may, holder = admitted(key, policy, tonumber(f[4]) or 0)
  if not may then return 'skipped', holder end
  local head = cmsgpack.unpack(f[1])
  local queue, priority, _, _, ends, fields = unpack(head)
  if ordered then
    fields[#fields + 1] = 'key'
    fields[#fields + 1] = key
    head[7] = key
  end
  if named then
    holder = store_named(id, f[5], f[2], head)
    if holder then return 'skipped', holder end
  else
    if ends > 0 then
      fields[#fields + 1] = 'expires'
      fields[#fields + 1] = now + ends
    end
    redis.call('HSET', job .. id, 'args', f[2], 'state', 'ready', unpack(fields))
    local line = {now - priority * 600000000, id}
    if ordered then line = turns().take(key, line) end
    if #line > 0 then line_up(id, queue, line[1]) end
  end
  redis.call('HINCRBY', plan .. name, 'runs', 1)
  return 'ran', id
end
