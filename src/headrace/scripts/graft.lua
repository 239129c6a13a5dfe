-- Graft: what a running node adds is stored, up to 500 nodes a call; it is reached when the node is settled as grown.
-- include node
-- clock   now
-- key     claims  zset  claims:<owner>
-- arg     owner   text
-- arg     id      text    the node that grows
-- arg     token   int
-- arg     nodes   packed  {code, {field, value, ...}} each
-- arg     link    packed  {join's code, edges to what begins, jobs added, 1: its output is the join's} with the last call, else {}
-- return  ok | stale
local held = redis.call('ZSCORE', claims, id)
if not held or tonumber(held) ~= token or not touch(flow_of(id)).there then return 'stale' end
for _, node in ipairs(nodes) do
  -- An earlier attempt may have left more in this record.
  redis.call('UNLINK', job .. node_of(id, node[1]))
  redis.call('HSET', job .. node_of(id, node[1]), 'state', 'blocked', 'origin', string.sub(id, 17, 20), unpack(node[2]))
end
if #link > 0 then redis.call('HSET', job .. id, 'graft', cmsgpack.pack(link)) end
return 'ok'
