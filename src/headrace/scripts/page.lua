-- Page: ids of the jobs in one structure, a bounded piece at a time.
-- include slice
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
local size, rows = slice(line, after, member, offset, limit, desc, low, high)
return {size, rows}
