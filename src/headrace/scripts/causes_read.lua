-- Causes read: what failures have in common, how many there were of each, and the newest ones. Changes nothing.
-- include records
-- keys    causes cause_at=cause
-- arg     task      text  only causes of this task; empty: of any
-- arg     by        text  number: those with the most failures first; last: those with the newest failure
-- arg     limit     int   most causes that are told, at most 100
-- arg     each      int   most failures of one cause that are told
-- arg     reads     int   most failures that are told, where that leaves one of each
-- arg     most      int   longest arguments that are told, in bytes; see records.lua
-- route   all
-- return  {how many causes there are, {{cause, {field, value, ...}, failures told}, ...}, what is stored of these}
local found = {}
for _, name in ipairs(redis.call('ZREVRANGE', causes, 0, -1)) do
  local f = redis.call('HMGET', cause_at .. name, 'task', 'number')
  if f[2] and (task == '' or task == f[1]) then found[#found + 1] = {name, tonumber(f[2]), #found} end
end
local count = #found
if by == 'number' then table.sort(found, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[3] < b[3] end) end
local rows, ids, share = {}, {}, math.max(1, math.min(each, math.floor(reads / math.max(1, math.min(limit, count)))))
for n = 1, math.min(limit, count) do
  local told = 0
  for id in string.gmatch(redis.call('HGET', cause_at .. found[n][1], 'recent') or '', '(%S+) ') do
    if told < share then told, ids[#ids + 1] = told + 1, id end
  end
  rows[n] = {found[n][1], redis.call('HGETALL', cause_at .. found[n][1]), told}
end
return {count, rows, records(ids, most)}
