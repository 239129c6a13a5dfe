-- Declarers: whether code that runs declares a schedule of code.
-- keys    owners plan=schedule known=tasks about=owner
-- Undeclared for so long (microseconds): orphaned.
local UNDECLARED = 600000000
-- By worker: whether it is shutting down.
local DRAINING = setmetatable({}, {__index = function(met, owner)
  met[owner] = redis.call('HEXISTS', about .. owner, 'draining') == 1
  return met[owner]
end})

-- A worker counts until it has left or is reclaimed: where all were silent, its lease alone says nothing. One that is
-- shutting down counts as long as no other knows the task: else newer code declares the schedule otherwise.
local function declares(owner, name, fingerprint)
  if redis.call('HGET', known .. owner, '~' .. name) ~= fingerprint then return false end
  local task = DRAINING[owner] and redis.call('HGET', plan .. name, 'task')
  for _, other in ipairs(task and redis.call('ZRANGE', owners, 0, -1) or {}) do
    if not DRAINING[other] and redis.call('HEXISTS', known .. other, task) == 1 then return false end
  end
  return true
end

-- last: the worker that declared it last.
local function declared(name, last, fingerprint)
  if declares(last, name, fingerprint) then return true end
  for _, owner in ipairs(redis.call('ZRANGE', owners, 0, -1)) do
    if declares(owner, name, fingerprint) then
      redis.call('HSET', plan .. name, 'declared', owner)
      return true
    end
  end
  return false
end

-- declared | waits: for a worker that declares it | orphaned. f: source, declared, fingerprint, undeclared, orphaned.
local function standing(name, f)
  if f[1] ~= 'code' then return 'declared' end
  if declared(name, f[2] or '', f[3]) then
    redis.call('HDEL', plan .. name, 'undeclared', 'orphaned')
    return 'declared'
  end
  if f[5] then return 'orphaned' end
  local is_over = f[4] and now - tonumber(f[4]) >= UNDECLARED
  if is_over or not f[4] then redis.call('HSET', plan .. name, is_over and 'orphaned' or 'undeclared', now) end
  return is_over and 'orphaned' or 'waits'
end
