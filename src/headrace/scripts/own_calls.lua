-- Own calls: what happened behind the cursor of each hook. One that is new begins with what happens from now on.
-- keys    watches events watch job
-- removes first watches
-- arg     hooks   packed  {{hook, microseconds between two calls, {kind, ...}}, ...}; no kinds: of any
-- arg     limit   int     events of one call
-- arg     look    int     entries that are looked at for each, at most 2000
-- route   desk
-- return  {{cursor, the last entry that was looked at, {{id, {field, value, ...}}, ...}, 1 where a call is due}, ...};
--         a look at alarms has no events, and the one that is due is the caller's
-- Seconds that a hook is kept which no worker declares; microseconds between two marks that one does.
local WEEK, MARK = 604800, 10000000
local ENDED = {succeeded = true, failed = true, cancelled = true, quarantined = true}
local newest = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
newest = newest and newest[1] or '0-0'

-- Events about built-in jobs would call hooks that cause them.
local function is_wanted(fields, kinds)
  local f = {}
  for n = 1, #fields, 2 do f[fields[n]] = fields[n + 1] end
  return f.queue ~= '_own' and (#kinds == 0 or kinds[f.kind])
end

-- One call at a time, and none too soon. A time ahead of now was written before the clock was set back.
local function may_call(last, called, pause)
  local state = last and redis.pcall('HGET', job .. last, 'st')
  local waits = called and tonumber(called) <= now and now - tonumber(called) < pause
  return not waits and (type(state) ~= 'string' or ENDED[state])
end

local found = {}
for n, hook in ipairs(hooks) do
  local name, pause, kinds = unpack(hook)
  local key = watch .. name
  for _, kind in ipairs(kinds) do kinds[kind] = true end
  if tonumber(redis.call('ZSCORE', watches, name) or 0) + MARK <= now then
    redis.call('ZADD', watches, now, name)
    redis.call('HSETNX', key, 'at', newest)
    redis.call('EXPIRE', key, WEEK)
    redis.call('EXPIRE', watches, WEEK)
  end
  local f = redis.call('HMGET', key, 'at', 'job', 'called')
  local at, rows, due = f[1] or newest, {}, may_call(f[2], f[3], pause)
  local last = at
  local reads = due and at ~= newest and name ~= 'alarms'
  for _, row in ipairs(reads and redis.call('XRANGE', events, '(' .. at, '+', 'COUNT', look) or {}) do
    if #rows < limit then
      last = row[1]
      if is_wanted(row[2], kinds) then rows[#rows + 1] = row end
    end
  end
  if due and name == 'alarms' then redis.call('HSET', key, 'called', now) end
  found[n] = {at, last, rows, due and 1 or 0}
end
redis.call('ZREMRANGEBYSCORE', watches, '-inf', now - WEEK * 1000000)
return found
