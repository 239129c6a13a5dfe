-- Page: ids of the jobs in one structure, a bounded piece at a time.
-- clock   now
-- key     index   zset  <index>
-- arg     index   text  scheduled, succeeded, failed, cancelled, quarantined, ready:<queue>, parked:<task> or claims:<owner>
-- arg     after   text  cursor: score of the last id seen, or empty
-- arg     member  text  cursor: the last id seen
-- arg     offset  int   ids to pass over
-- arg     limit   int   at most 1000
-- arg     desc    int   1: newest first
-- arg     low     text  least score, such as -inf
-- arg     high    text  greatest score, such as +inf
-- return  {count, {id, score, ...}}
if after ~= '' then if desc == 1 then high = after else low = after end end
local found = {}
local function take(first, most)
  if desc == 1 then return redis.call('ZRANGE', index, high, low, 'BYSCORE', 'REV', 'LIMIT', first, most, 'WITHSCORES') end
  return redis.call('ZRANGE', index, low, high, 'BYSCORE', 'LIMIT', first, most, 'WITHSCORES')
end
-- Equal scores are common (one chunk, one time): a cursor names its id too, found by rank, so that ties are never re-read one by one.
if after ~= '' then
  local rank = redis.call(desc == 1 and 'ZREVRANK' or 'ZRANK', index, member)
  if rank then
    local rows = desc == 1 and redis.call('ZREVRANGE', index, rank + 1, rank + limit, 'WITHSCORES')
      or redis.call('ZRANGE', index, rank + 1, rank + limit, 'WITHSCORES')
    return {redis.call('ZCARD', index), rows}
  end
end
return {redis.call('ZCARD', index), take(offset, limit)}
