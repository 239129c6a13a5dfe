-- Tend: a bounded piece of what scripts left to do, oldest first: of workflows, and of jobs that wait for others.
-- include drop withdraw edges
-- keys    after
-- arg     limit   int   nodes, edges or jobs, at most 1000; a cancelled node counts as two
-- arg     ttl     int   microseconds that a job stays which is cancelled since one that it follows did not succeed
-- route   desk
-- return  {chores that are due, pieces done, now, when the next one is due or 0}
-- Each chore takes one for itself.
batch.room = math.max(limit, 2)
local DO = {}
local function words(chore)
  local found = {}
  for word in string.gmatch(chore .. ':', '([^:]*):') do found[#found + 1] = word end
  return found
end

-- Each but 'drop', 'held' and 'abandon' counted as active, so that its workflow could not end before it.
DO.walk = function(id, from, state, released)
  local f = graph().touch(flow_of(id))
  if not f.there then return end
  graph().count(f, 'active', -1)
  if f.cancel then return end
  local children = redis.call('HGET', job .. id, 'children') or ''
  batch.walks[#batch.walks + 1] = {id = id, f = f, state = state, children = children, from = tonumber(from),
    released = released ~= '' and released or nil}
  graph().walk_all()
end
DO.roots = function(fid, from)
  local f = graph().touch(fid)
  if not f.there then return end
  graph().count(f, 'active', -1)
  if not f.cancel then graph().begin_roots(fid, f, tonumber(from)) end
end
DO.held = function(fid)
  local f = graph().touch(fid)
  -- The end of a cancelled one finds them where they are held.
  if f.there and f.state == 'running' and not f.cancel then graph().begin_held(fid, f) end
end
DO.retry = function(fid)
  local f = graph().touch(fid)
  if not f.there then return end
  graph().count(f, 'active', -1)
  -- The cancellation may have passed their numbers already.
  if not f.cancel then graph().retry_broken(fid, f) end
end
DO.cancel = function(fid, from)
  local f = graph().touch(fid)
  if not f.there then return end
  graph().count(f, 'active', -1)
  local number, size = tonumber(from), tonumber(redis.call('HGET', flow .. fid, 'size') or 0)
  while number <= size and batch.room > 0 do
    local id = node_of(fid, code_of(number))
    local role = redis.call('HGET', job .. id, 'role')
    -- What undoes or reports it goes on, also where a stop has held it.
    if role ~= 'undo' and role ~= 'callback' then withdraw(id, 0)
    elseif redis.call('ZREM', held .. fid, id) == 1 then line_up_again(id) end
    -- To end a node takes as long as to walk several edges.
    number, batch.room = number + 1, batch.room - 2
  end
  if number <= size then graph().leave(f, 'cancel:' .. fid .. ':' .. number) end
end
DO.drop = function(fid, from, size) drop_nodes(fid, tonumber(from), tonumber(size)) end
DO.abandon = drop_flow

local function follow(id, other, state)
  local f = redis.call('HMGET', job .. id, 'st', 'pending', 'anyway', 'queue', 'priority')
  -- One that was cancelled stays a member, also where a person has retried it.
  if f[1] ~= 'blocked' or not f[2] then return end
  if state ~= 'succeeded' and not f[3] then
    naming().take_out(id, f[1])
    finish(id, 'cancelled', '{"type":"Cancelled","message":"job ' .. other .. ', which it follows, has not succeeded: '
      .. state .. '"}', ttl)
  elseif redis.call('HINCRBY', job .. id, 'pending', -1) == 0 then
    naming().take_out(id, f[1])
    redis.call('HDEL', job .. id, 'pending')
    ready_again(id, f[4], f[5], 0)
  end
end
DO.after = function(id, ended)
  local state = redis.pcall('HGET', job .. id, 'st')
  if type(state) ~= 'string' then state = ended end
  if not finals[state] then
    -- It was retried since: its next end counts.
    redis.call('ZADD', waited, 9000000000000000, id)
    return
  end
  local popped = redis.call('ZPOPMIN', after .. id, batch.room)
  for n = 1, #popped, 2 do
    batch.room = batch.room - 1
    pcall(follow, popped[n], id, state)
  end
  if redis.call('EXISTS', after .. id) == 1 then redis.call('ZADD', chores, now, 'after:' .. id .. ':' .. state) end
end

local pieces = 0
while batch.room > 0 do
  local due = redis.call('ZRANGEBYSCORE', chores, '-inf', now, 'LIMIT', 0, 1)[1]
  if not due then break end
  redis.call('ZREM', chores, due)
  local chore = words(due)
  local verb = table.remove(chore, 1)
  batch.room, pieces = batch.room - 1, pieces + 1
  if DO[verb] then DO[verb](unpack(chore)) end
end
return function()
  return {redis.call('ZCOUNT', chores, '-inf', now), pieces, now,
    redis.call('ZRANGE', chores, 0, 0, 'WITHSCORES')[2] or 0}
end
