-- Settle: running jobs leave their owner's claims as their outcomes say; only the newest token may.
-- include finish
-- include line
-- include crash
-- clock   now
-- key     self       hash    owner:<owner>    the incarnation's last settled request
-- key     claims     zset    claims:<owner>
-- key     cancels    set     cancels:<owner>  running ids that were asked to stop
-- key     scheduled  zset    scheduled
-- key     parking    set     parking          tasks that have parked jobs
-- derive  parked     zset    parked:<task>
-- arg     owner      text    who settles
-- arg     request    int     number of the request; the same again changes nothing
-- arg     outcomes   packed  {id, token, kind, data, amount, ready} each, at most 1000; microseconds
-- return  {ok | repeated, {stale ids}, kept jobs, kept bytes}; the last two are 0 when nothing was kept now
local function kept(word, stale)
  if #retained == 0 then return {word, stale, 0, 0} end
  return {word, stale, redis.call('ZCARD', expires), tonumber(redis.call('HGET', totals, 'bytes') or 0)}
end
local ids, fresh, stale = {}, {}, {}
for n, outcome in ipairs(outcomes) do ids[n] = outcome[1] end
local known = redis.call('HMGET', self, 'settled', 'since')
if tonumber(known[1]) == request then return kept('repeated', {}) end
-- Reclaimed or retired: a note of this request would be a key that nobody owns and nothing ends.
if not known[2] then return kept('ok', ids) end
local tokens = #ids > 0 and redis.call('ZMSCORE', claims, unpack(ids)) or {}
local left, taken = {}, {}
for n, outcome in ipairs(outcomes) do
  local id = outcome[1]
  if tokens[n] and tonumber(tokens[n]) == outcome[2] and not taken[id] then
    fresh[#fresh + 1] = outcome
    left[#left + 1] = id
    taken[id] = true
  else
    stale[#stale + 1] = id
  end
end
-- A removal comes first: once a script has written, a server whose memory is full lets it write on.
redis.call('ZREM', claims, '', unpack(left))
redis.call('HSET', self, 'settled', request)
if #left == 0 then return kept('ok', stale) end
redis.call('SREM', cancels, unpack(left))

local CANCELLED = '{"type":"Cancelled","message":"cancelled while it ran"}'

local function back(id, score)
  local f = redis.call('HMGET', job .. id, 'queue', 'priority', 'cancel')
  if f[3] then return finish(id, 'cancelled', CANCELLED, 604800000000) end
  redis.call('HSET', job .. id, 'state', 'ready')
  redis.call('HDEL', job .. id, 'owner')
  if score == 0 then score = now - (tonumber(f[2]) or 0) * 600000000 end
  line_up(id, f[1] or 'default', score)
end

local function later(id, delay, counter)
  redis.call('HINCRBY', job .. id, counter, 1)
  redis.call('HSET', job .. id, 'more', 1)
  if redis.call('HEXISTS', job .. id, 'cancel') == 1 then
    finish(id, 'cancelled', CANCELLED, 604800000000)
  elseif delay <= 0 then
    back(id, 0)
  else
    redis.call('HSET', job .. id, 'state', 'scheduled')
    redis.call('HDEL', job .. id, 'owner')
    redis.call('ZADD', scheduled, now + delay, id)
  end
end

local outs = {
  succeeded = function(id, data, keep) finish(id, 'succeeded', data, keep) end,
  failed = function(id, data, keep)
    redis.call('HINCRBY', job .. id, 'failures', 1)
    finish(id, 'failed', data, keep)
  end,
  cancelled = function(id, data, keep) finish(id, 'cancelled', data, keep) end,
  corrupt = function(id, data, keep) finish(id, 'quarantined', data, keep) end,
  crashed = function(id, data, keep, score) crash(id, data, score, keep) end,
  retry = function(id, data, delay)
    redis.call('HSET', job .. id, 'error', data)
    later(id, delay, 'failures')
  end,
  snoozed = function(id, _, delay) later(id, delay, 'snoozes') end,
  released = function(id, _, _, score) back(id, score) end,
  interrupted = function(id, data, keep, score)
    redis.call('HINCRBY', job .. id, 'interruptions', 1)
    redis.call('HSET', job .. id, 'more', 1)
    local f = redis.call('HMGET', job .. id, 'once', 'cancel')
    if f[1] then finish(id, 'failed', data, keep)
    elseif f[2] then finish(id, 'cancelled', data, keep)
    else back(id, score) end
  end,
  parked = function(id)
    local f = redis.call('HMGET', job .. id, 'task', 'cancel')
    if f[2] then return finish(id, 'cancelled', CANCELLED, 604800000000) end
    local task = f[1] or ''
    redis.call('HSET', job .. id, 'state', 'parked')
    redis.call('HDEL', job .. id, 'owner')
    redis.call('ZADD', parked .. task, now, id)
    redis.call('SADD', parking, task)
  end,
}
for _, outcome in ipairs(fresh) do
  local id, _, kind, data, amount, score = unpack(outcome)
  -- Scripts do not roll back: an alien record must not take the rest of its batch out of every structure.
  if not pcall(outs[kind], id, data, amount, score)
    and not pcall(finish, id, 'quarantined', '{"type":"Corrupt","message":"its record cannot be read"}', 604800000000) then
    stale[#stale + 1] = id
  end
end
finish_all()
line_up_all()
return kept('ok', stale)
