-- Page: ids of the jobs in one structure, a bounded piece at a time.
-- include slice
-- include lanes
-- commit  batch
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
local queue = string.match(index, '^ready:(.*)$')
-- Entries that stand for others are no jobs: a class of lanes in a line, the first timer among what is scheduled.
local more = queue and redis.call('HLEN', classes .. queue) or index == 'scheduled' and redis.call('EXISTS', timers) or 0
local size, rows = slice(line, after, member, offset, limit > 0 and limit + more or limit, desc, low, high)
if more == 0 then return {size, rows} end
return {queue and limiting().lanes().size(queue) or size - 1, only_jobs(rows, limit)}
