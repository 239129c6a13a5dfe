-- Compensate: a workflow without active nodes has ended, or undoes what it did, node by node.
-- include node telling
-- lazy    graph
-- keys    lapses waited live done
-- step    count_all
-- Nothing of it is active any more: it has ended, or goes back over what can be undone, or waits to be started again.
local function conclude(fid, f)
  local h = redis.call('HMGET', flow .. fid, 'hard', 'total', 'succeeded', 'failed', 'cancelled', 'quarantined',
    'skipped', 'ttl', 'key', 'on_success', 'on_failure', 'unstarted')
  local ended = 0
  for n = 3, 7 do ended = ended + (tonumber(h[n]) or 0) end
  local state = f.cancel and 'cancelled' or (tonumber(h[1]) or 0) > 0 and 'failed' or 'succeeded'
  if state == 'succeeded' and ended < (tonumber(h[2]) or 0) then
    -- Some of its roots were never started: it waits for that, and not for ever.
    if f.state ~= 'stopped' then become(fid, f, 'pending') end
    if h[12] then redis.call('ZADD', lapses, now + h[12], fid) end
    return
  end
  local last = state ~= 'succeeded' and redis.call('ZPOPMAX', undo .. fid)[1]
  local by = last and redis.call('HGET', job .. last, 'undo')
  if by then
    local id = node_of(fid, by)
    local u = redis.call('HMGET', job .. id, 'queue', 'priority')
    redis.call('HSET', flow .. fid, 'undoing', 1)
    f.undoing = 1
    begin_node(id, f, u[1], u[2], 0)
    redis.call('HINCRBY', flow .. fid, 'active', 1)
    f.add.active = nil
    return
  end
  become(fid, f, state)
  if state == 'failed' then telling().happened('workflow_failed', {'workflow', fid, 'definition', f.definition}) end
  redis.call('HSET', flow .. fid, 'finished', now)
  redis.call('HDEL', flow .. fid, 'stopped')
  redis.call('UNLINK', undo .. fid)
  if h[9] and redis.call('GET', live .. f.definition .. ':' .. h[9]) == fid then
    redis.call('UNLINK', live .. f.definition .. ':' .. h[9])
  end
  -- One that stays for ever may have had a time as it was stopped before its start.
  if (tonumber(h[8]) or -1) >= 0 then redis.call('ZADD', lapses, now + h[8], fid)
  else redis.call('ZREM', lapses, fid) end
  call_back(fid, state == 'succeeded' and h[10] or state ~= 'succeeded' and h[11])
  if redis.call('ZREM', waited, fid) == 1 then redis.call('PUBLISH', done .. fid, state) end
end

local function count_all()
  for fid, f in pairs(batch.touched) do
    if f.there and next(f.add) then
      local active
      for field, by in pairs(f.add) do
        if by ~= 0 or field == 'active' then
          local is = redis.call('HINCRBY', flow .. fid, field, by)
          if field == 'active' then active = is end
        end
      end
      f.add = {}
      if active == 0 and (f.state == 'running' or f.state == 'stopped') then conclude(fid, f) end
    end
  end
end
