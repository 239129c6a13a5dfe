-- Watch hold: a watcher takes the hooks and alarms that no other watcher holds, and keeps or releases those that it
-- has.
-- clock   now
-- key     watches  zset    watches
-- key     events   stream  events
-- derive  watch    hash    watch:<watch>
-- removes first watches
-- arg     holder   text    names the watcher
-- arg     lease    int     microseconds; 0: it releases what it holds
-- arg     names    packed  hooks and alarms, at most 200
-- return  {now, {{field, value, ...}, or {} where another watcher holds it}, ...}
-- Seconds that what no watcher holds is kept: as long as the events.
local KEEP = 604800
local newest = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
local found = {}
for n, name in ipairs(names) do
  local key = watch .. name
  local was = redis.call('HMGET', key, 'holder', 'until')
  local mine, ends = was[1] == holder, tonumber(was[2] or 0)
  -- An end further ahead than a lease was written before the server's clock was set back.
  if mine or lease > 0 and (ends <= now or ends > now + lease) then
    redis.call('HSET', key, 'holder', holder, 'until', now + lease)
    -- A new hook begins with what happens from now on.
    if not was[1] and string.sub(name, 1, 5) == 'hook:' then
      redis.call('HSETNX', key, 'at', newest and newest[1] or '0-0')
    end
    redis.call('EXPIRE', key, KEEP)
    redis.call('ZADD', watches, now, name)
    found[n] = redis.call('HGETALL', key)
  else
    found[n] = {}
  end
end
redis.call('ZREMRANGEBYSCORE', watches, '-inf', now - KEEP * 1000000)
redis.call('EXPIRE', watches, KEEP)
return {now, found}
