-- Bulk count: for how many jobs a bulk operation would be, of a bounded piece.
-- include bulk
-- arg     after   text  cursor: score of the last job seen, or empty
-- arg     member  text  cursor: the last job seen
-- arg     lane    text  cursor: the lane in which it waits, or empty
-- route   desk
-- return  {jobs meant, nodes among them, jobs looked at, score, id and lane of the last one if more may come, now}
local found, looked, last = pick(now, after, member, lane, limit)
local nodes = 0
for _, id in ipairs(found) do
  if is_node(id) then nodes = nodes + 1 end
end
return {#found, nodes, looked, last and last[1] or '', last and last[2] or '', last and last[3] or '', now}
