-- Settle: running jobs leave their owner's claims as their outcomes say; only the newest token may.
-- include finish outcomes journal let_go changed
-- keys    self=owner:<owner> claims:<owner> cancels:<owner>
-- arg     request    int     number of the request; the same again changes nothing
-- arg     failure_ttl int    microseconds that a job stays whose end no outcome brought: cancelled, or unreadable
-- arg     outcomes   packed  {kind, amount, {id, token, data, ready, ...}} each, at most 1000 starts; microseconds
-- arg     starts     packed  {id, ready, first line of the error, signal or 0, exit code or -1, ...} for journals
-- route   desk
-- return  {ok | repeated, {stale ids}, kept jobs, kept bytes, chores}; counts are 0 where this settle added nothing
local function answer(word, stale)
  local walked, kept = #batch.walks > 0 or batch.followed, #batch.retained > 0
  return function()
    return {word, stale, kept and redis.call('ZCARD', expires) or 0,
      kept and tonumber(redis.call('HGET', totals, 'bytes') or 0) or 0, walked and redis.call('ZCARD', chores) or 0}
  end
end
local ids, stale = {}, {}
for _, group in ipairs(outcomes) do
  local rows = group[3]
  for n = 1, #rows, 4 do ids[#ids + 1] = rows[n] end
end
local known = redis.call('HMGET', self, 'settled', 'since')
if tonumber(known[1]) == request then return answer('repeated', {}) end
-- Reclaimed or retired: a note of this request would be a key without an owner and nothing ends.
if not known[2] then return answer('ok', ids) end
local tokens = #ids > 0 and redis.call('ZMSCORE', claims, unpack(ids)) or {}
local left, taken = {}, {}
local at = 0
for _, group in ipairs(outcomes) do
  local rows = group[3]
  for n = 1, #rows, 4 do
    local id = rows[n]
    at = at + 1
    if tokens[at] and tonumber(tokens[at]) == rows[n + 1] and not taken[id] then
      left[#left + 1] = id
      taken[id] = rows[n + 1]
    else
      stale[#stale + 1] = id
    end
  end
end
-- Nothing is noted of a request that changes nothing: a repeat finds the same ids stale.
if #left == 0 then return answer('ok', stale) end
-- A full server lets this script write, since a removal comes first.
redis.call('ZREM', claims, unpack(left))
redis.call('HSET', self, 'settled', request)
redis.call('SREM', cancels, unpack(left))

-- Those that hold gates, mostly none, and what they hold: the shorter list is looked up in the other.
local function holding()
  local found, texts, held = {}, {}, redis.call('HLEN', slots .. owner)
  if held >= #left then
    texts = redis.call('HMGET', slots .. owner, unpack(left))
    for n = 1, #left do
      if texts[n] then return left, texts end
    end
  end
  local all = held > 0 and held < #left and redis.call('HGETALL', slots .. owner) or {}
  for n = 1, #all, 2 do
    if taken[all[n]] then found[#found + 1], texts[#texts + 1] = all[n], all[n + 1] end
  end
  return found, texts
end
local holders, texts = holding()
-- What did not start gives its permits back.
if #holders > 0 then
  local unused, poor = {}, {}
  local fine, none = {succeeded = true, grown = true}, {released = true, parked = true, corrupt = true}
  for _, group in ipairs(outcomes) do
    local kind, rows = group[1], group[3]
    for n = 1, fine[kind] and 0 or #rows, 4 do
      poor[rows[n]] = true
      if none[kind] then unused[rows[n]] = rows[n + 1] end
    end
  end
  limiting().let_go(owner, holders, texts, unused, poor)
end
-- Where a start's part of the journal stands in `starts`, by id.
local noted = {}
for n = 1, #starts, 5 do noted[starts[n]] = n end
local place = string.match(owner, '^(.*):%x+$') or owner

local handlers
local function conclude(kind, amount, id, token, data, score)
  local at = noted[id]
  -- Its workflow was deleted: nothing of it may come back.
  if is_node(id) and not graph().touch(flow_of(id)).there then return finish(id, 'cancelled', '', 0) end
  -- Its record was deleted: what is written now would be a record of nothing. A success finds out by itself.
  if kind ~= 'succeeded' and not is_node(id) and redis.call('EXISTS', job .. id) == 0 then
    return finish(id, 'cancelled', '', 0)
  end
  -- An unreadable journal must not keep its job from ending.
  if at then
    pcall(note_start, id, starts[at + 1], token, place, kind, starts[at + 2], starts[at + 3], starts[at + 4])
  end
  -- Scripts do not roll back: an unreadable record must not take the rest of its batch out of every structure.
  local stored
  if kind == 'succeeded' then
    stored = pcall(finish, id, kind, data, amount)
  else
    handlers = handlers or outs().new_handlers(self, failure_ttl)
    stored = pcall(handlers[kind], id, data, amount, score)
    naming().changed(id, redis.pcall('HGET', job .. id, 'followed'))
  end
  if not stored and not pcall(finish, id, 'quarantined', '{"type":"Corrupt","message":"its record cannot be read"}',
      failure_ttl) then
    stale[#stale + 1] = id
  end
end

for _, group in ipairs(outcomes) do
  local kind, amount, rows = group[1], group[2], group[3]
  for n = 1, #rows, 4 do
    if taken[rows[n]] == rows[n + 1] then
      taken[rows[n]] = nil
      conclude(kind, amount, rows[n], rows[n + 1], rows[n + 2], rows[n + 3])
    end
  end
end
return answer('ok', stale)
