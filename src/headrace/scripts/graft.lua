-- Graft: what a running node adds is stored, up to 500 nodes a call; it is reached when the node is settled as grown.
-- include ids flow_state
-- keys    claims:<owner> job
-- arg     id      text    the node that grows
-- arg     token   int
-- arg     nodes   packed  {code, {field, value, ...}} each
-- arg     link    packed  {join's code, edges to what begins, jobs added, 1: its output is the join's}, with the last
--                         call
-- route   desk
-- return  ok | stale | unreserved: these numbers are not its own
local held = redis.call('ZSCORE', claims, id)
if not held or tonumber(held) ~= token or not graph().touch(flow_of(id)).there then return 'stale' end
local r = redis.call('HMGET', job .. id, 'reserved', 'reserve')
local from = tonumber(r[1] or 0)
for _, node in ipairs(nodes) do
  local number = number_of(node_of(id, node[1]))
  -- A server that forgot the reservation may have given these numbers to another.
  if from == 0 or number < from or number >= from + tonumber(r[2]) then return 'unreserved' end
end
for _, node in ipairs(nodes) do
  -- An earlier attempt may have left more in this record.
  redis.call('UNLINK', job .. node_of(id, node[1]))
  redis.call('HSET', job .. node_of(id, node[1]), 'st', 'blocked', 'origin', string.sub(id, 16, 19), unpack(node[2]))
end
if #link > 0 then redis.call('HSET', job .. id, 'graft', cmsgpack.pack(link)) end
return 'ok'
