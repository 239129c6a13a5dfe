-- Schedule declare: schedules come to be, change, or stay; those of code belong to the workers that declare them.
-- include wake
-- keys    ticking schedules owners replaced plan=schedule known=tasks about=owner
-- arg     owner      text    the incarnation whose code declares them; empty: they are stored at run time
-- arg     rows       packed  {name, fingerprint, {field, value, ...}} each, at most 500
-- route   desk
-- return  a word for each: created | changed | same | superseded (a live worker declares a newer one) | taken (by code,
--         or by a run-time one) | gone (the incarnation is) | unreadable (of code: its record is)
local words, changed, newer, others = {}, false, false, nil

-- The workers that go on claiming, beside the one that asks. They count until they are reclaimed: a server that was
-- away ends all leases, and old code may be the first back.
local function working()
  if others then return others end
  others = {}
  for _, other in ipairs(redis.call('ZRANGE', owners, '(0', '+inf', 'BYSCORE')) do
    if other ~= owner and redis.call('HEXISTS', about .. other, 'draining') == 0 then others[#others + 1] = other end
  end
  return others
end

local function declared(name, fingerprint)
  for _, other in ipairs(working()) do
    if redis.call('HGET', known .. other, '~' .. name) == fingerprint then return true end
  end
  return false
end

-- Ticks begin anew from now; what was counted, the pause and the history stay.
local function store(name, fingerprint, fields, old)
  -- This write comes first: where memory is full nothing is stored at run time.
  redis.call('HSET', plan .. name, 'fingerprint', fingerprint, 'source', owner == '' and 'stored' or 'code', 'known',
    now, 'ticks', '', 'changed', now, 'declared', owner)
  redis.call('HDEL', plan .. name, 'final', 'ended', 'left', 'orphaned', 'undeclared', 'failing', 'seen')
  redis.call('HSET', plan .. name, unpack(fields))
  redis.call('HINCRBY', plan .. name, 'version', 1)
  redis.call('ZADD', schedules, 0, name)
  if not old[1] then redis.call('HSET', plan .. name, 'created', now) end
  if not old[3] then redis.call('ZADD', ticking, now, name) end
  changed = true
end

-- A late call of one that has left: what it declares would be a key that nothing ends.
local gone = owner ~= '' and not redis.call('ZSCORE', owners, owner)

local function declare(name, fingerprint, fields)
  if gone then return 'gone' end
  local old = redis.call('HMGET', plan .. name, 'fingerprint', 'source', 'paused', 'superseded', 'ended', 'orphaned',
    'left')
  if owner ~= '' then redis.call('HSET', known .. owner, '~' .. name, fingerprint) end
  if not old[1] then
    store(name, fingerprint, fields, old)
    return 'created'
  elseif (old[2] == 'code') ~= (owner ~= '') then
    return 'taken'
  end
  if owner ~= '' then
    redis.call('HSET', plan .. name, 'declared', owner)
    -- Its ticks may wait for code that declares it.
    if redis.call('HDEL', plan .. name, 'undeclared', 'orphaned') > 0 and not (old[3] or old[5]) then
      redis.call('ZADD', ticking, now, name)
      changed = true
    end
  end
  -- One that ended begins anew for a caller. An orphaned one ticks from now on, for what is left of its `most`.
  local returns = old[6] and not old[5]
  if old[1] == fingerprint and not (owner == '' and old[5] or returns) then return 'same' end
  local before = old[4] and cmsgpack.unpack(old[4]) or {}
  for _, one in ipairs(before) do
    -- Old code that is still there, or starts again, beside the new one.
    if owner ~= '' and one == fingerprint and declared(name, old[1]) then return 'superseded' end
  end
  before[#before + 1] = old[1]
  while #before > 10 do table.remove(before, 1) end
  redis.call('HSET', plan .. name, 'superseded', cmsgpack.pack(before))
  newer = owner ~= ''
  store(name, fingerprint, fields, old)
  if old[1] == fingerprint and returns and old[7] then redis.call('HSET', plan .. name, 'left', old[7]) end
  return 'changed'
end
-- A removal comes first: once a script has written, a server whose memory is full lets it write on.
if owner ~= '' then redis.call('SREM', replaced .. owner, 'schedules') end
for n, row in ipairs(rows) do
  local read, word = pcall(declare, unpack(row))
  if not read and owner == '' then error(word, 0) end
  words[n] = read and word or 'unreadable'
end
-- The worker whose code this is may leave before the others, which then declare theirs again.
for _, other in ipairs(newer and working() or {}) do redis.call('SADD', replaced .. other, 'schedules') end
-- Every dispatcher asks what is due next.
if changed then hurry() end
return words
