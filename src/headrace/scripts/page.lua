-- Page: ids of the jobs in one structure, a bounded piece at a time.
-- key     line    zset  <index>
-- arg     index   text  scheduled, succeeded, failed, cancelled, quarantined, ready:<queue>, parked:<task> or claims:<owner>
-- arg     after   text  cursor: score of the last id seen, or empty
-- arg     member  text  cursor: the last id seen
-- arg     offset  int   ids to pass over
-- arg     limit   int   at most 1000
-- arg     desc    int   1: newest first
-- arg     low     text  least score, such as -inf
-- arg     high    text  greatest score, such as +inf
-- return  {count, {id, score, ...}}
local size = redis.call('ZCARD', line)
if after == '' then
  if desc == 1 then
    return {size, redis.call('ZRANGE', line, high, low, 'BYSCORE', 'REV', 'LIMIT', offset, limit, 'WITHSCORES')}
  end
  return {size, redis.call('ZRANGE', line, low, high, 'BYSCORE', 'LIMIT', offset, limit, 'WITHSCORES')}
end

-- Equal scores are common (one chunk, one time), so a cursor names its id too and is found by rank: ties are neither
-- read twice nor passed over, also when the id itself has left meanwhile.
local passed = redis.call('ZRANK', line, member)
if passed and tonumber(redis.call('ZSCORE', line, member)) == tonumber(after) then
  if desc == 0 then passed = passed + 1 end
else
  local first = redis.call('ZCOUNT', line, '-inf', '(' .. after)
  local least, most = 0, redis.call('ZCOUNT', line, after, after)
  while least < most do
    local middle = math.floor((least + most) / 2)
    if redis.call('ZRANGE', line, first + middle, first + middle)[1] < member then least = middle + 1 else most = middle end
  end
  passed = first + least
end
local rows
if desc == 1 then
  local first = size - passed + offset
  rows = redis.call('ZREVRANGE', line, first, first + limit - 1, 'WITHSCORES')
else
  rows = redis.call('ZRANGE', line, passed + offset, passed + offset + limit - 1, 'WITHSCORES')
end
local found, bound = {}, tonumber(desc == 1 and low or high)
for n = 1, #rows, 2 do
  local score = tonumber(rows[n + 1])
  if bound and (desc == 1 and score < bound or desc == 0 and score > bound) then break end
  found[n], found[n + 1] = rows[n], rows[n + 1]
end
return {size, found}
