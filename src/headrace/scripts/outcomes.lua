-- Outcomes: what becomes of jobs whose starts ended without success, or added nodes.
-- include finish again journal held_gates
-- lazy    outs new_handlers
-- keys    scheduled parking parked owners about=owner known=tasks mail
-- batch   heard   {}    tasks and queues that workers have heard of
local CANCELLED = '{"type":"Cancelled","message":"cancelled while it ran"}'
-- Workers that are looked at, and told of a parked job: the others hear of it with their next renewals.
local LOOKED_AT, TOLD = 100, 8

-- Live workers that know a task and serve its queue hear that jobs of it are parked: once, however many a batch parks.
local function tell_knowers(task, queue)
  local what, heard = task .. ' ' .. queue, 0
  if batch.heard[what] then return end
  batch.heard[what] = true
  for _, other in ipairs(redis.call('ZRANGE', owners, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, LOOKED_AT)) do
    if heard < TOLD and redis.call('HEXISTS', known .. other, task) == 1 then
      local served = redis.call('HGET', about .. other, 'queues') or ''
      if queue == '_own' or string.find(',' .. served .. ',', ',' .. queue .. ',', 1, true) then
        heard = heard + redis.call('PUBLISH', mail .. other, 'parked:' .. task)
      end
    end
  end
end

-- What a node added becomes part of the graph: its children wait for the join instead, and it leads to what was added.
-- False: nothing of it is stored, since the server forgot it.
local function link(id)
  local f, packed = graph().touch(flow_of(id)), redis.call('HGET', job .. id, 'graft')
  if f.cancel or not packed then return f.cancel end
  local join, roots, size, gather = unpack(cmsgpack.unpack(packed))
  local joint = job .. node_of(id, join)
  -- What an earlier failure of it has counted for its children, their join must not count again.
  local released = redis.call('HGET', job .. id, 'released')
  if released then redis.call('HSET', joint, 'released', released) end
  redis.call('HSET', joint, 'children', redis.call('HGET', job .. id, 'children') or '')
  redis.call('HSET', job .. id, 'children', roots, 'grown', number_of(node_of(id, join)))
  if gather == 1 then redis.call('HSET', job .. id, 'gather', join) end
  redis.call('HDEL', job .. id, 'graft')
  graph().count(f, 'total', size)
  return true
end

-- A job lines up again, or ends as cancelled where it was asked to stop. ttl: how long it then stays.
local function go_back(id, score, ttl)
  local f = redis.call('HMGET', job .. id, 'queue', 'priority', 'cancel')
  if f[3] then return finish(id, 'cancelled', CANCELLED, ttl) end
  redis.call('HDEL', job .. id, 'owner')
  ready_again(id, f[1], f[2], score)
end

-- The same after a delay; it counts as one more of a kind.
local function come_later(id, delay, counter, ttl)
  redis.call('HINCRBY', job .. id, counter, 1)
  redis.call('HSET', job .. id, 'more', 1)
  if redis.call('HEXISTS', job .. id, 'cancel') == 1 then
    finish(id, 'cancelled', CANCELLED, ttl)
  elseif delay <= 0 then
    go_back(id, 0, ttl)
  else
    redis.call('HSET', job .. id, 'st', 'scheduled')
    redis.call('HDEL', job .. id, 'owner')
    redis.call('ZADD', scheduled, now + delay, id)
  end
end

-- By outcome: handler(id, data, microseconds that it stays or waits, score). owner: the key of who ran it.
local function new_handlers(owner, failure_ttl)
  local self = {
    skipped = function(id, data, ttl) finish(id, 'skipped', data, ttl) end,
    failed = function(id, data, ttl)
      redis.call('HINCRBY', job .. id, 'failures', 1)
      finish(id, 'failed', data, ttl)
    end,
    cancelled = function(id, data, ttl) finish(id, 'cancelled', data, ttl) end,
    corrupt = function(id, data, ttl) finish(id, 'quarantined', data, ttl) end,
    crashed = function(id, data, ttl, score) crash(id, data, score, ttl, owner) end,
    retry = function(id, data, delay)
      redis.call('HSET', job .. id, 'error', data)
      come_later(id, delay, 'failures', failure_ttl)
    end,
    snoozed = function(id, _, delay) come_later(id, delay, 'snoozes', failure_ttl) end,
    -- To the head of its lane, whose gate is closed for a time. One that has no such limit by now waits alone.
    limited = function(id, limit, delay, score)
      if not limiting().hold_off(id, limit, delay) then
        return come_later(id, math.max(delay, 1000000), 'limited', failure_ttl)
      end
      redis.call('HINCRBY', job .. id, 'limited', 1)
      redis.call('HSET', job .. id, 'more', 1)
      go_back(id, score, failure_ttl)
    end,
    released = function(id, _, _, score) go_back(id, score, failure_ttl) end,
    interrupted = function(id, data, ttl, score)
      redis.call('HINCRBY', job .. id, 'interruptions', 1)
      redis.call('HSET', job .. id, 'more', 1)
      local f = redis.call('HMGET', job .. id, 'once', 'cancel')
      if f[1] then finish(id, 'failed', data, ttl)
      elseif f[2] then finish(id, 'cancelled', data, ttl)
      else go_back(id, score, failure_ttl) end
    end,
    parked = function(id, _, _, score)
      local f = redis.call('HMGET', job .. id, 'task', 'cancel', 'queue')
      if f[2] then return finish(id, 'cancelled', CANCELLED, failure_ttl) end
      local task = f[1] or ''
      redis.call('HSET', job .. id, 'st', 'parked')
      redis.call('HDEL', job .. id, 'owner')
      redis.call('ZADD', parked .. task, score == 0 and now or score, id)
      if redis.call('SADD', parking, task) == 1 then
        telling().happened('parked', {'task', task, 'queue', f[3] or 'default', 'job', id})
      end
      tell_knowers(task, f[3] or 'default')
    end,
  }
  self.grown = function(id, data, ttl, score)
    if link(id) then finish(id, 'succeeded', data, ttl)
    else self.interrupted(id, '{"type":"Lost","message":"the server forgot what it had added"}', failure_ttl, score) end
  end
  return self
end
