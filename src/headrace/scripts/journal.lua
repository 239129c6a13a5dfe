-- Journal: a start that ended is added to its job's journal: the first 3 and the last 7 starts stay. Only jobs whose
-- first start did not succeed have one, in a field; `attempts` beside it counts every start that was added.
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
