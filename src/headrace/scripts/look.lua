-- Look: which of the next jobs of one structure may match a search, newest first; the others stay in the store.
-- include slice
-- key     line    zset    <index>
-- derive  job     hash    job:<id>
-- arg     index   text    scheduled, succeeded, failed, cancelled, quarantined, ready:<queue> or parked:<task>
-- arg     after   text    cursor: score of the last job seen, or empty
-- arg     member  text    cursor: the last job seen
-- arg     limit   int     jobs that are looked at, at most 500
-- arg     low     text    least score, such as -inf
-- arg     high    text    greatest score, such as +inf
-- arg     queue   text    empty: any, as for those below
-- arg     task    text
-- arg     key     text
-- arg     words   packed  in lower case: each is in the job's id, task, key, arguments or error
-- return  {jobs of the structure, jobs looked at, {id, score, ...} of those that may match, score and id of the last one or empty: no more}
-- Bytes of arguments and error that are looked at: longer arguments no list shows.
local HEAD = 4096
local count, rows = slice(line, after, member, 0, limit, 1, low, high)

local function missing(text, wanted)
  local left = {}
  for _, word in ipairs(wanted) do
    if not string.find(text, word, 1, true) then left[#left + 1] = word end
  end
  return left
end

local function may_match(id)
  local f = redis.pcall('HMGET', job .. id, 'queue', 'task', 'key', 'error')
  if f.err then return false end
  if queue ~= '' and queue ~= (f[1] or 'default') or task ~= '' and task ~= f[2] or key ~= '' and key ~= f[3] then return false end
  local told = {id, f[2] or '', f[3] or '', string.sub(f[4] or '', 1, HEAD)}
  local left = missing(string.lower(table.concat(told, '\n')), words)
  if #left == 0 then return true end
  if redis.call('HSTRLEN', job .. id, 'args') > HEAD then return false end
  return #missing(string.lower(redis.call('HGET', job .. id, 'args') or ''), left) == 0
end

local found = {}
for n = 1, #rows, 2 do
  -- A class of lanes, or the first timer, is no job.
  if string.byte(rows[n]) ~= 126 and may_match(rows[n]) then found[#found + 1], found[#found + 2] = rows[n], rows[n + 1] end
end
local last = #rows == 2 * limit
return {count, #rows / 2, found, last and rows[#rows] or '', last and rows[#rows - 1] or ''}
