-- Page: the jobs in one structure, a bounded piece at a time: their ids, or what is stored of them, too.
-- include slice records line_size
-- keys    line=<index> timers
-- arg     index   text  a state with an index, ready:<queue>, parked:<task> or claims:<owner>
-- arg     after   text  cursor: score of the last id seen, or empty
-- arg     member  text  cursor: the last id seen
-- arg     offset  int   ids to pass over
-- arg     limit   int   at most 1000
-- arg     desc    int   1: newest first
-- arg     low     text  least score, such as -inf
-- arg     high    text  greatest score, such as +inf
-- arg     most    int   longest arguments that are told, in bytes, and no results; 0: everything; less than 0: ids only
-- route   all
-- return  {count, {id, score, ...}, what is stored of each; see records.lua}
local queue = string.match(index, '^ready:(.*)$')
-- Entries that stand for others are no jobs: a class of lanes in a line, the first timer among what is scheduled.
local more = queue and redis.call('HLEN', classes .. queue) or index == 'scheduled' and redis.call('EXISTS', timers)
  or 0
local size, rows = slice(line, after, member, offset, limit > 0 and limit + more or limit, desc, low, high)
if more > 0 then size, rows = queue and limiting().line_size(queue) or size - 1, only_jobs(rows, limit) end
return {size, rows, records_of_rows(rows, most)}
