-- Node start: whether a workflow's node may start.
-- lazy  starting may_start
-- include ids
-- keys    job log flow held
-- batch   flows {}    by workflow: its state, and whether it was stopped or cancelled
-- Not while its workflow is stopped, never when that was deleted; what undoes a cancelled one, and its callback, may.
local function may_start(id, score)
  local fid, flows = flow_of(id), batch.flows
  flows[fid] = flows[fid] or redis.call('HMGET', flow .. fid, 'st', 'stopped', 'cancel')
  local f = flows[fid]
  if not f[1] then
    redis.call('UNLINK', job .. id, log .. id)
    return false
  end
  if not f[2] and not f[3] then return true end
  local role = redis.call('HGET', job .. id, 'role')
  if role == 'callback' or role == 'undo' and not f[2] then return true end
  redis.call('HSET', job .. id, 'st', 'stopped')
  redis.call('ZADD', held .. fid, score, id)
end
