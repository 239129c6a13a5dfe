-- Walk: the jobs in several structures of one kind, one structure after the other, a bounded piece at a time.
-- Behind the line of a queue come the lanes in which its limited jobs wait, by their names; of each class the first 500.
-- include slice
-- include records
-- include queue_lanes
-- derive  ready   zset    ready:<queue>
-- derive  lane    zset    lane:<lane>
-- derive  parked  zset    parked:<task>
-- derive  claims  zset    claims:<owner>
-- arg     kind    text    ready, parked or claims
-- arg     names   packed  queues, tasks or owners in their order, at most 50; the first may be a lane
-- arg     after   text    cursor in the first of them: score of the last id seen, or empty
-- arg     member  text    cursor: the last id seen
-- arg     limit   int     at most 1000, of all together
-- arg     desc    int     1: newest first
-- arg     low     text    least score, such as -inf
-- arg     high    text    greatest score, such as +inf
-- arg     most    int     longest arguments that are told, in bytes, and no results; 0: everything; less than 0: ids only
-- return  {{{name, {id, score, ...}} of each that was looked at}, what is stored of each job; see records.lua}
local found, all = {}, {}
local function look(name, key, classes_in)
  if limit <= 0 then return end
  local first = #found == 0
  local _, rows = slice(key, first and after or '', first and member or '', 0, limit + classes_in, desc, low, high)
  if classes_in > 0 then rows = only_jobs(rows, limit) end
  found[#found + 1] = {name, rows}
  limit = limit - #rows / 2
  for _, value in ipairs(rows) do all[#all + 1] = value end
end

for _, name in ipairs(names) do
  if kind ~= 'ready' then look(name, (kind == 'parked' and parked or claims) .. name, 0)
  else
    local queue = string.match(name, '^[^|]*')
    if name == queue then look(name, ready .. name, redis.call('HLEN', classes .. name)) else look(name, lane .. name, 0) end
    if limit > 0 then
      for _, other in ipairs(queue_lanes(queue, name, 500)) do look(other, lane .. other, 0) end
    end
  end
end
return {found, records_of_rows(all, most)}
