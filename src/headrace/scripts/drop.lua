-- Drop: a workflow leaves with everything that it owns, at once or, where it is large, as a chore.
-- include finish take_out
-- keys    lapses chores flow flows broken undo live
local function tell_gone(id, word)
  if redis.call('ZREM', waited, id) == 1 then redis.call('PUBLISH', done .. id, word) end
end

-- Nodes from number 'from' on leave with their places, and at last what holds them; the rest is a chore.
local function drop_nodes(fid, from, size)
  local dead, anyone = {}, redis.call('EXISTS', waited) == 1
  while from <= size and batch.room > 0 do
    local id = node_of(fid, code_of(from))
    -- A record of another type must not keep the others.
    local n = redis.pcall('HMGET', job .. id, 'st', 'queue', 'task', 'owner')
    if n[1] == 'running' then naming().ask_to_stop(id, n[4])
    elseif n[1] == 'failed' or n[1] == 'quarantined' then redis.call('ZREM', finals[n[1]], id)
    elseif n[1] then naming().take_out(id, n[1], n[2], n[3]) end
    if anyone then tell_gone(id, 'cancelled') end
    dead[#dead + 1], dead[#dead + 2] = job .. id, log .. id
    from, batch.room = from + 1, batch.room - 1
  end
  unlink_all(dead)
  if from <= size then redis.call('ZADD', chores, now, 'drop:' .. fid .. ':' .. from .. ':' .. size)
  else redis.call('UNLINK', held .. fid) end
end

local function drop_flow(fid)
  local f = redis.call('HMGET', flow .. fid, 'st', 'definition', 'key', 'size')
  redis.call('ZREM', lapses, fid)
  if not f[1] and not f[4] then return false end
  local definition = f[2] or ''
  for _, view in ipairs({'|', '|' .. (f[1] or ''), definition .. '|', definition .. '|' .. (f[1] or '')}) do
    redis.call('ZREM', flows .. view, fid)
  end
  if f[3] and redis.call('GET', live .. definition .. ':' .. f[3]) == fid then
    redis.call('UNLINK', live .. definition .. ':' .. f[3])
  end
  redis.call('UNLINK', flow .. fid, broken .. fid, undo .. fid)
  tell_gone(fid, 'cancelled')
  drop_nodes(fid, 1, tonumber(f[4]) or 0)
  return true
end
