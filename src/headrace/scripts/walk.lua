-- Walk: the jobs in several structures, one structure after the other, a bounded piece at a time; of a search those
-- that may match. Behind the line of a queue come the lanes in which its limited jobs wait.
-- include slice records line_size
-- keys    succeeded_at=succeeded failed_at=failed cancelled_at=cancelled quarantined_at=quarantined
-- keys    scheduled_at=scheduled ready_at=ready parked_at=parked claims_at=claims chain_at=chain
-- arg     names   packed  structures in their order, at most 50: a state, or ready:<queue>, parked:<task>,
--                         claims:<owner>, chain:<key>; own: built-in jobs, which the others leave out
-- arg     place   text    cursor in the first of them: a lane of its queue, see queue_lanes; empty: its line
-- arg     after   text    cursor: score of the last job seen, or empty
-- arg     member  text    cursor: the last job seen
-- arg     looks   int     jobs and lanes that are looked at, at most 1000
-- arg     limit   int     most jobs that are told
-- arg     desc    int     1: newest first
-- arg     low     text    least score, such as -inf
-- arg     high    text    greatest score, such as +inf
-- arg     queue   text    empty: any, as for those below
-- arg     task    text
-- arg     key     text
-- arg     words   packed  in lower case: each is in the id, task, key, note, arguments, or type or text of the error
-- arg     most    int     longest arguments told, in bytes, and no results; 0: everything; below 0: ids only
-- route   all
-- return  {jobs of the first structure, jobs looked at, {id, score, ...}, what is stored of each; see records.lua,
--          cursor where there may be more: {how many of the structures are behind it, place, score, id}}
-- Bytes of arguments and error that are looked at: longer arguments no list shows.
local HEAD = 4096
local AT = {succeeded = succeeded_at, failed = failed_at, cancelled = cancelled_at, quarantined = quarantined_at,
  scheduled = scheduled_at, ready = ready_at, parked = parked_at, claims = claims_at, chain = chain_at, own = own}
local hidden, hidden_counts = {}, {}
if names[1] ~= 'own' then hidden, hidden_counts = own_jobs() end
local filters = queue ~= '' or task ~= '' or key ~= '' or #words > 0

-- Type and message: a list shows no more, and what follows them is the most of an error.
local function head_of(text)
  local stop = string.find(text, '","traceback":"', 1, true)
  return string.sub(text, 1, stop and math.min(stop, HEAD) or HEAD)
end

-- Whether digits may be in a number of the arguments: in wide ones, which Lua rounds, and in unreadable ones they may.
local function may_hold(args, digits)
  if string.find(args, '[\202\203\207\211]') then return true end
  local read, text = pcall(function() return cjson.encode(cmsgpack.unpack(args)) end)
  return not read or string.find(text, digits, 1, true)
end

-- A look takes as long as its commands and their fields are many: none is asked for that does not matter.
local function may_match(id)
  if hidden[id] then return false end
  if not filters then return true end
  local f = redis.pcall('HMGET', job .. id, 'queue', 'task', 'key')
  if f.err or queue ~= '' and queue ~= (f[1] or 'default') or task ~= '' and task ~= f[2]
    or key ~= '' and key ~= f[3] then
    return false
  end
  if #words == 0 then return true end
  local args = redis.call('HSTRLEN', job .. id, 'args') <= HEAD
  local more = redis.call('HMGET', job .. id, 'error', 'label', args and 'args' or 'task')
  local told = string.lower(table.concat({id, f[2] or '', f[3] or '', more[1] and head_of(more[1]) or '', more[2] or '',
    more[3] or ''}, '\n'))
  for _, word in ipairs(words) do
    local met = string.find(told, word, 1, true) or args and not string.find(word, '%D')
      and may_hold(more[3] or '', word)
    if not met then return false end
  end
  return true
end

local rows, looked, work, at = {}, 0, 0, nil
local fresh = true
-- The jobs of one structure; others: entries that stand for others: classes of lanes in a line, or the first timer.
local function look(n, here, at_key, others)
  local _, part = slice(at_key, fresh and after or '', fresh and member or '', 0, looks - work + others, desc, low,
    high)
  fresh = false
  for m = 1, #part, 2 do
    if string.byte(part[m]) ~= 126 then
      looked, work = looked + 1, work + 1
      if may_match(part[m]) then rows[#rows + 1], rows[#rows + 2] = part[m], part[m + 1] end
      if work >= looks or #rows >= 2 * limit then
        at = {n - 1, here, part[m + 1], part[m]}
        return
      end
    end
  end
end

local function look_at_lanes(n, name)
  for _, one in ipairs(queue_lanes(name, n == 1 and place or '', looks - work)) do
    local before = work
    look(n, one[1], lane .. one[2], 0)
    if at then return end
    -- So that lanes which hold none of the wanted times are bounded, too.
    if work == before then work = work + 1 end
    if work >= looks then
      at = {n - 1, one[1], desc == 1 and '0' or '9007199254740991', ''}
      return
    end
  end
end

local function size_of(kind, name)
  if kind == 'ready' then return limiting().line_size(name) end
  local size = redis.call('ZCARD', AT[kind] .. name) - (hidden_counts[kind] or 0)
  return kind == 'scheduled' and redis.call('ZSCORE', scheduled_at, '~') and size - 1 or size
end

local count, lined = 0, 0
for n, full in ipairs(names) do
  local kind, name = string.match(full, '^(%a+):?(.*)$')
  if n == 1 then count = size_of(kind, name) end
  local lanes = kind == 'ready' and redis.call('HLEN', classes .. name) or 0
  if n == 1 and place ~= '' then
    local in_lane = string.match(place, ' (.*)$')
    look(n, place, lane .. in_lane, 0)
  else look(n, '', AT[kind] .. name, kind == 'scheduled' and 1 or lanes) end
  if n == 1 then lined = #rows / 2 end
  if not at and lanes > 0 then look_at_lanes(n, name) end
  if at then break end
end
return {count, looked, rows, records_of_rows(rows, most), at or {}, lined}
