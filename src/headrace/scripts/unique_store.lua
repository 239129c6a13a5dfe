-- Unique store: a unique job is stored if its name is free. Included, never run alone.
-- The value of a name is the job that holds it. It has an end of its own only where a time says how long it is held.
-- include turn
-- lazy    naming store_named retake holder_of
-- clock   now
-- key     scheduled  zset    scheduled
-- derive  job        hash    job:<id>
-- derive  unique     string  unique:<name>
local ENDED = {succeeded = true, failed = true, cancelled = true, quarantined = true}

-- Whether a job that has the name may start or runs. One whose time to start is over does not count.
local function lives(name, id)
  local f = redis.pcall('HMGET', job .. id, 'unique', 'state', 'expires', 'token')
  if f.err or f[1] ~= name or ENDED[f[2] or 'cancelled'] then return false end
  return f[2] == 'running' or f[4] or not f[3] or tonumber(f[3]) > now
end

-- Who has the name: a job that has not ended, or any while a time is not over. nil: it is free.
local function holder_of(name)
  local id = redis.call('GET', unique .. name)
  return id and (lives(name, id) or redis.call('PTTL', unique .. name) > 0) and id or nil
end

-- Takes the name, or returns who has it.
local function take_name(name, id, rule)
  local ttl = rule[3] > 0 and {'PX', math.ceil(rule[3] / 1000)} or {}
  if redis.call('SET', unique .. name, id, 'NX', unpack(ttl)) then return nil end
  local holder = holder_of(name)
  if not holder then redis.call('SET', unique .. name, id, unpack(ttl)) end
  return holder ~= id and holder or nil
end

-- A new job, with its name: as accept stores others.
local function put(id, name, args, head)
  local queue, priority, delay, at, ends, fields, key = unpack(head)
  local due, own = at > 0 and at or now + delay, ends > 0 and {'expires', now + ends} or {}
  local waits = due > now
  redis.call('HSET', job .. id, 'args', args, 'unique', name, 'state', waits and 'scheduled' or 'ready', unpack(fields))
  if own[1] then redis.call('HSET', job .. id, unpack(own)) end
  if waits then
    local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', scheduled, due, id)
    if not nearest or due < tonumber(nearest) then wake_up(queue) end
    return
  end
  local line = {now - priority * 600000000, id}
  if key then line = turns().take(key, line) end
  if #line > 0 then line_up(id, queue, line[1]) end
end

-- Returns the job that has the name, where none was stored.
local function store_named(id, name, args, head)
  local holder = take_name(name, id, head[8])
  if not holder then put(id, name, args, head) end
  return holder
end

-- A job that has ended runs again: it needs its name, where it would hold that until its end. Returns who else has it.
local function retake(id)
  local f = redis.call('HMGET', job .. id, 'unique', 'hold')
  return f[1] and not f[2] and take_name(f[1], id, {'done', '', 0}) or nil
end
