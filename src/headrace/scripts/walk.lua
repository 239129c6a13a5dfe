-- Walk: the jobs in several structures of one kind, one structure after the other, a bounded piece at a time.
-- include slice
-- include records
-- derive  ready   zset    ready:<queue>
-- derive  classes hash    classes:<queue>
-- derive  parked  zset    parked:<task>
-- derive  claims  zset    claims:<owner>
-- arg     kind    text    ready, parked or claims
-- arg     names   packed  queues, tasks or owners in their order, at most 50
-- arg     after   text    cursor in the first of them: score of the last id seen, or empty
-- arg     member  text    cursor: the last id seen
-- arg     limit   int     at most 1000, of all together
-- arg     desc    int     1: newest first
-- arg     low     text    least score, such as -inf
-- arg     high    text    greatest score, such as +inf
-- arg     most    int     longest arguments that are told, in bytes, and no results; 0: everything; less than 0: ids only
-- return  {{{id, score, ...} of each that was looked at}, what is stored of each job; see records.lua}
local line, found, all = ({ready = ready, parked = parked, claims = claims})[kind], {}, {}
for n, name in ipairs(names) do
  if limit > 0 then
    local more = kind == 'ready' and redis.call('HLEN', classes .. name) or 0
    local _, rows = slice(line .. name, n == 1 and after or '', n == 1 and member or '', 0, limit + more, desc, low, high)
    found[n] = more == 0 and rows or only_jobs(rows, limit)
    limit = limit - #found[n] / 2
    for _, value in ipairs(found[n]) do all[#all + 1] = value end
  end
end
return {found, records_of_rows(all, most)}
