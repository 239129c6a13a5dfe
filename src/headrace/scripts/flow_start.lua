-- Start: a workflow's roots line up, or the named nodes instead; one that was stopped goes on.
-- include edges
-- arg     names  packed  codes of nodes to start now whatever they wait for, at most 500; empty: all roots
-- route   of id
-- return  running | missing | the final state that it is in
local f = graph().touch(id)
if not f.there then return 'missing' end
if f.cancel or graph().is_over(f) then return f.cancel and 'cancelled' or f.state end
redis.call('HDEL', flow .. id, 'stopped')
redis.call('ZREM', lapses, id)
redis.call('HSETNX', flow .. id, 'started', now)
if f.state ~= 'running' then graph().become(id, f, 'running') end
-- Nothing begins anew while it goes back over what it did.
if not f.undoing then
  for _, code in ipairs(names) do
    if graph().is_part(node_of(id, code)) then graph().open_node(node_of(id, code), f) end
  end
  -- Once: what is left of them is a chore, and a workflow of many roots is resumed as soon as any.
  if #names == 0 and redis.call('HSETNX', flow .. id, 'begun', 1) == 1 then graph().begin_roots(id, f, 1) end
end
graph().begin_held(id, f)
graph().count(f, 'active', 0)
return function() return f.state end
