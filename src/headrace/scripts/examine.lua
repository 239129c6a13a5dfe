-- Examine: jobs whose record and structures contradict each other are found and, where asked for, led back.
-- include ids journal again let_go take_out after
-- keys    scheduled parking ready parked claims cancels held chain after lane unique flow victim=owner
-- removes first waited
-- arg     place      text    the structure that the ids come from, such as ready:default; empty: their records
-- arg     list       packed  ids, at most 1000
-- arg     repair       int     1: lead them back
-- arg     ttl        int     microseconds that a job stays which has ended and had no end of its retention
-- route   desk
-- return  {bytes of their kept results and errors, id, fault, evidence, 1 where it was led back, ...}
local fixed = {scheduled = scheduled, expires = expires}
for state, index in pairs(finals) do fixed[state] = index end
local families = {ready = ready, parked = parked, claims = claims, held = held, chain = chain, lane = lane,
  after = after}
local bytes = 0

local function key_at(where)
  local family, rest = string.match(where, '^(%l+):(.*)$')
  return fixed[where] or families[family] .. rest
end

local function is_in(where, id) return redis.call('ZSCORE', key_at(where), id) end

-- Where the state says that the job is; empty: in no structure; nil: there is no such state.
local function home_of(id, f)
  local state = f.st
  if is_node(id) then
    if state == 'stopped' then return 'held:' .. flow_of(id) end
    if state == 'blocked' or state == 'skipped' or state == 'succeeded' or state == 'cancelled' then return '' end
  end
  if state == 'blocked' then
    if f.after then return following().will_be_freed(id, f.after) and '' or 'after:' end
    if f.unique and string.sub(redis.call('GET', unique .. f.unique) or '', 23) == id then return '' end
    return f.key and 'chain:' .. f.key
  elseif state == 'ready' then
    return f.lane and is_in('lane:' .. f.lane, id) and 'lane:' .. f.lane or 'ready:' .. f.queue
  elseif state == 'running' then
    return 'claims:' .. (f.owner or '')
  elseif state == 'parked' then
    return 'parked:' .. (f.task or '')
  end
  return fixed[state] and state
end

-- The structures that hold the job beside its state's.
local function others_of(id, f, home)
  local found, names = {}, {'scheduled', 'succeeded', 'failed', 'cancelled', 'quarantined', 'ready:' .. f.queue}
  if f.task then names[#names + 1] = 'parked:' .. f.task end
  if f.owner then names[#names + 1] = 'claims:' .. f.owner end
  if f.key then names[#names + 1] = 'chain:' .. f.key end
  if f.lane then names[#names + 1] = 'lane:' .. f.lane end
  if is_node(id) then names[#names + 1] = 'held:' .. flow_of(id) end
  local seen = {[home] = true, expires = true}
  if not seen[place] and place ~= '' then names[#names + 1] = place end
  for _, name in ipairs(names) do
    if not seen[name] and is_in(name, id) then found[#found + 1] = name end
    seen[name] = true
  end
  return found
end

local function remove_from(where, id)
  -- A lane has counts, and a claim has gates: other verbs keep these.
  if string.find(where, '^lane:') or string.find(where, '^claims:') then return false end
  if redis.call('ZREM', key_at(where), id) == 0 then return false end
  if string.find(where, '^chain:') then redis.call('HINCRBY', totals, 'blocked', -1) end
  if string.find(where, '^parked:') and redis.call('EXISTS', key_at(where)) == 0 then
    redis.call('SREM', parking, string.sub(where, 8))
  end
  return true
end

local function crashed(id, f)
  local owner, why = f.owner or '', 'it ran without a claim'
  redis.call('SREM', cancels .. owner, id)
  note_start(id, 0, tonumber(f.token) or now, owner, 'crashed', 'Crashed: ' .. why, 0, -1)
  crash(id, '{"type":"Crashed","message":"' .. why .. '"}', 0, ttl, victim .. owner)
  limiting().let_go(owner, {id}, redis.call('HMGET', slots .. owner, id), {}, {[id] = true})
end

local function lead_home(id, f, home)
  if f.st == 'running' then return crashed(id, f) end
  if home == 'after:' then
    naming().take_out(id, f.st)
    return finish(id, 'cancelled', '{"type":"Lost","message":"the jobs that it follows are gone"}', ttl)
  end
  if f.st == 'ready' then return ready_again(id, f.queue, f.priority, 0) end
  if home == '' then return end
  redis.call('ZADD', key_at(home), f.finished or now, id)
  if f.st == 'blocked' then redis.call('HINCRBY', totals, 'blocked', 1) end
  if f.st == 'parked' then redis.call('SADD', parking, f.task or '') end
  if f.st == 'scheduled' then wake_up(f.queue) end
end

local function without_record(id)
  -- It has gone since; or it is a node that runs on though its workflow was deleted, and whose outcome is refused.
  if place == '' or not is_in(place, id) then return end
  if string.find(place, '^claims:') and is_node(id) and redis.call('EXISTS', flow .. flow_of(id)) == 0 then return end
  local done_now = repair == 1 and remove_from(place, id)
  if done_now and redis.call('ZREM', waited, id) == 1 then redis.call('PUBLISH', done .. id, 'lost') end
  return 'no-record', place, done_now
end

local NAMES = {'st', 'queue', 'task', 'owner', 'lane', 'key', 'unique', 'priority', 'finished', 'token', 'after'}
local function examined(id)
  local row, f = redis.pcall('HMGET', job .. id, unpack(NAMES)), {}
  if row.err then return 'unreadable', 'its key holds another type' end
  for n, name in ipairs(NAMES) do f[name] = row[n] or nil end
  if not f.st and redis.call('EXISTS', job .. id) == 0 then return without_record(id) end
  f.queue = f.queue or 'default'
  local home = home_of(id, f)
  if not home then return 'unreadable', 'state ' .. (f.st or '') end
  local final = finals[home] ~= nil
  -- In its place. Another structure that has it, too, finds this when its own members are looked at.
  if place == home and not final and home ~= '' then return end
  local inside = home == '' or is_in(home, id)
  if place == '' and inside and not final then return end
  local others, lapses = others_of(id, f, home), is_in('expires', id)
  if final and place == home and inside and not is_node(id) then
    bytes = bytes + redis.call('HSTRLEN', job .. id, home == 'succeeded' and 'result' or 'error')
  end
  if #others > 0 and home ~= '' and inside then return 'twice', home .. ' ' .. table.concat(others, ' ') end
  local endless = final and not is_node(id) and not lapses
  if inside and #others == 0 and not endless and (final or not lapses) then return end
  local able = repair == 1
  for _, name in ipairs(others) do able = able and remove_from(name, id) end
  if able and not inside then lead_home(id, f, home) end
  if able and endless then redis.call('ZADD', expires, now + ttl, id) end
  if able and lapses and not final then redis.call('ZREM', expires, id) end
  if not inside then others[#others + 1] = 'not ' .. home end
  if endless then others[#others + 1] = 'not expires' end
  if lapses and not final then others[#others + 1] = 'expires' end
  return 'misplaced', table.concat(others, ' '), able
end

local found = {}
for _, id in ipairs(list) do
  local fault, evidence, done_now = examined(id)
  local n = #found
  if fault then
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = id, fault, evidence, done_now and 1 or 0
  end
end
return function()
  table.insert(found, 1, bytes)
  return found
end
