-- Journal: a start that ended is added to its job's journal: the first 3 and the last 7 starts stay. Only jobs whose
-- first start did not succeed have one, in a field; `attempts` beside it counts every start that was added. After a
-- start without an outcome the job runs again, fails (at most once) or is quarantined.
-- include finish again
-- keys    job
local function note_start(id, ready_at, started, where, outcome, line, number, code)
  local f = redis.call('HMGET', job .. id, 'journal', 'attempts', 'st')
  -- The record is gone: a field written now would be a key without an owner.
  if not f[3] then return end
  local read, kept = pcall(cmsgpack.unpack, f[1] or '')
  if not read or type(kept) ~= 'table' then kept = {} end
  -- A job that lines up where it stood was not ready again before its last start had ended.
  local last = kept[#kept]
  if ready_at > 0 and type(last) == 'table' then ready_at = math.max(ready_at, tonumber(last[3]) or 0) end
  if #kept >= 10 then table.remove(kept, 4) end
  -- Of many jobs that one claim took the later tokens are ahead of the clock.
  kept[#kept + 1] = {ready_at, started, math.max(now, started), where, outcome, line, number, code}
  -- `more` has the next claim read the count, by which the end of that start is known to belong here.
  redis.call('HSET', job .. id, 'journal', cmsgpack.pack(kept), 'attempts', (tonumber(f[2]) or 0) + 1, 'more', 1)
end

-- The worker that ran it knows the budget of its task where the record names none: its 'owner' key says so.
local function budget_of(task, owner)
  local known = redis.call('HMGET', owner, 'budget:' .. (task or ''), 'budget:')
  return tonumber(known[1] or known[2]) or 3
end

local function crash(id, evidence, score, ttl, owner)
  local f = redis.call('HMGET', job .. id, 'crashes', 'budget', 'once', 'cancel', 'queue', 'priority', 'task')
  local crashes = (tonumber(f[1]) or 0) + 1
  redis.call('HSET', job .. id, 'crashes', crashes, 'more', 1, 'error', evidence)
  if f[3] then
    finish(id, 'failed', evidence, ttl)
  elseif f[4] then
    finish(id, 'cancelled', evidence, ttl)
  elseif crashes >= (tonumber(f[2]) or budget_of(f[7], owner)) then
    finish(id, 'quarantined', evidence, ttl)
  else
    redis.call('HDEL', job .. id, 'owner')
    ready_again(id, f[5], f[6], score)
  end
end
