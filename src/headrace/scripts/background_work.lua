-- Background work: what a script leaves to do, as a chore for tend. Included, never run alone.
-- include flow_state
-- lazy    graph leave
-- keys    chores
-- batch   room     500   nodes and edges that the script may still handle
-- A chore that its workflow has not ended before. The same one may be left again while it waits: it counts once.
local function leave(f, chore)
  if redis.call('ZADD', chores, 'NX', now, chore) == 1 then count(f, 'active', 1) end
end
