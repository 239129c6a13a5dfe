-- Bulk count: for how many jobs a bulk operation would be, of a bounded piece.
-- include bulk ids
-- arg     state   text
-- arg     queue   text  empty: any, as for those below
-- arg     task    text
-- arg     key     text
-- arg     cause   text
-- arg     after   text  cursor: score of the last job seen, or empty
-- arg     member  text  cursor: the last job seen
-- arg     lane    text  cursor: the lane in which it waits, or empty
-- arg     limit   int   jobs that are looked at, at most 1000
-- route   desk
-- return  {jobs that are meant, those of them that are nodes of workflows, jobs that were looked at, score, id and lane
--         of the last one where there may be more, now}
local e = {state = state, queue = queue, task = task, key = key, cause = cause, after = after, member = member,
  lane = lane, bound = now}
local found, looked, last = pick(e, limit)
local nodes = 0
for _, id in ipairs(found) do
  if is_node(id) then nodes = nodes + 1 end
end
return {#found, nodes, looked, last and last[1] or '', last and last[2] or '', last and last[3] or '', now}
