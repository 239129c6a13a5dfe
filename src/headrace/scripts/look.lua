-- Look: which of the next jobs of one structure may match a search, newest first; the others stay in the store.
-- include slice
-- key     line    zset    <index>
-- derive  job     hash    job:<id>
-- arg     index   text    scheduled, succeeded, failed, cancelled, quarantined, ready:<queue> or parked:<task>
-- arg     after   text    cursor: score of the last job seen, or empty
-- arg     member  text    cursor: the last job seen
-- arg     offset  int     jobs to pass over
-- arg     limit   int     jobs that are looked at, at most 250
-- arg     low     text    least score, such as -inf
-- arg     high    text    greatest score, such as +inf
-- arg     queue   text    empty: any, as for those below
-- arg     task    text
-- arg     key     text
-- arg     words   packed  in lower case: each is in the job's id, task, key, note, arguments, or the type and message of its error
-- return  {jobs of the structure, jobs looked at, {id, score, ...} of those that may match, score and id of the last one or empty: no more}
-- Bytes of arguments and error that are looked at: longer arguments no list shows.
local HEAD = 4096
-- A row more tells whether there are more.
local count, rows = slice(line, after, member, offset, limit + 1, 1, low, high)

-- Type and message: a list shows no more, and what follows them is the most of an error.
local function head_of(text)
  local stop = string.find(text, '","traceback":"', 1, true)
  return string.sub(text, 1, stop and math.min(stop, HEAD) or HEAD)
end

-- A look takes as long as its commands and their fields are many: none is asked for that does not matter.
local function may_match(id)
  local hash = job .. id
  local size = redis.pcall('HSTRLEN', hash, 'args')
  if type(size) ~= 'number' then return false end
  if queue ~= '' and queue ~= (redis.call('HGET', hash, 'queue') or 'default') then return false end
  if #words == 0 and task == '' and key == '' then return true end
  local f = redis.call('HMGET', hash, 'task', 'key', 'error', size <= HEAD and 'args' or 'task', 'label')
  if task ~= '' and task ~= f[1] or key ~= '' and key ~= f[2] then return false end
  local told = string.lower(id .. '\n' .. (f[1] or '') .. '\n' .. (f[2] or '') .. '\n' .. (f[3] and head_of(f[3]) or '') .. '\n' .. (f[4] or '') .. '\n' .. (f[5] or ''))
  for _, word in ipairs(words) do
    if not string.find(told, word, 1, true) then return false end
  end
  return true
end

local found, looked = {}, math.min(#rows / 2, limit)
for n = 1, 2 * looked, 2 do
  -- A class of lanes, or the first timer, is no job.
  if string.byte(rows[n]) ~= 126 and may_match(rows[n]) then found[#found + 1], found[#found + 2] = rows[n], rows[n + 1] end
end
local more = #rows > 2 * looked
return {count, looked, found, more and rows[2 * looked] or '', more and rows[2 * looked - 1] or ''}
