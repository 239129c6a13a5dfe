-- Unique store: a unique job is stored with its name or, where another one has that, its rule says what happens.
-- include turn unique_holder take_out
-- lazy    naming store_named
-- keys    scheduled sums=totals lane
local function at_time(head, due)
  return {head[1], head[2], 0, due, head[5], head[6], head[7], head[8]}
end

-- A job gets new arguments and stays what it is. In a lane it moves to that of its new values, by its age.
local function take_args(f, args)
  redis.call('HSET', job .. f.id, 'args', args)
  local name = f.state == 'ready' and redis.call('HGET', job .. f.id, 'lane')
  local score = name and redis.call('ZSCORE', lane .. name, f.id)
  if score and limiting().leave_lane(f.id) then line_up(f.id, f.queue or 'default', tonumber(score)) end
end

-- A job that waits becomes the new one, under its old id. One that has started before gets the new arguments only.
local function replace(c, f, new, name, args, head, blocked)
  -- What lined up in this call is in no structure yet.
  line_up_all()
  if batch.limiting then
    batch.limiting.store_entering()
    batch.limiting.store_lanes()
  end
  if f.started or is_ordered(f.id) ~= is_ordered(new) then return take_args(f, args) end
  if not blocked then
    take_out(f.id, f.state, f.queue, f.task)
    if is_ordered(f.id) then turns().pass_on(f.id) end
  end
  redis.call('UNLINK', job .. f.id)
  c.put(f.id, name, args, head, blocked, f.cap)
end

-- It waits until the one that runs has ended. Returns the one that waits already, which it has replaced.
local function follow(c, id, name, args, head)
  if c.follower then
    replace(c, {id = c.follower}, id, name, args, head, true)
    return c.follower
  end
  redis.call('SET', unique .. name, c.holder .. ' ' .. id)
  redis.call('HINCRBY', sums, 'blocked', 1)
  c.put(id, name, args, head, true)
end

-- By rule: what happens to a job that is alive and has the name. Returns the job that stands for the new one, if any.
local CLASHES = {}
CLASHES.replace = function(c, id, name, args, head)
  if c.f and c.f.state ~= 'running' then replace(c, c.f, id, name, args, head) end
  return c.holder
end
CLASHES.latest = function(c, id, name, args, head)
  local timed = not c.f or c.f.state == 'running' and redis.call('PTTL', unique .. name) > 0
  -- One that follows is the last to run, also where the first waits for its retry.
  if timed or c.f.state ~= 'running' and not c.follower then return CLASHES.replace(c, id, name, args, head) end
  return follow(c, id, name, args, head)
end
CLASHES.cancel = function(c, id, name, args, head)
  if c.f and c.f.state == 'running' then ask_to_stop(c.holder, c.f.owner) end
  return CLASHES.latest(c, id, name, args, head)
end
CLASHES.debounce = function(c, id, name, args, head)
  if c.f and c.f.state ~= 'running' then
    local later = c.f.state == 'scheduled' and not c.f.started
    if later then replace(c, c.f, id, name, args, at_time(head, math.min(now + head[8][3], c.f.cap or math.huge)))
    else take_args(c.f, args) end
  end
  return c.holder
end
-- One at the end of the window, and a window after it.
CLASHES.trailing = function(c, id, name, args, head)
  local left = redis.call('PTTL', unique .. name)
  if c.f and c.f.state == 'scheduled' and not c.f.started then
    redis.call('HSET', job .. c.holder, 'args', args)
  elseif left > 0 then
    redis.call('SET', unique .. name, id, 'PX', left + math.ceil(head[8][3] / 1000))
    return c.put(id, name, args, at_time(head, now + left * 1000))
  end
  return c.holder
end

-- A new job with its name, stored as accept stores others. blocked: it follows the one that has the name.
local function put(id, name, args, head, blocked, cap)
  local queue, priority, delay, at, ends, fields, key = unpack(head)
  local due = at > 0 and at or now + delay
  local state = blocked and 'blocked' or due > now and 'scheduled' or 'ready'
  redis.call('HSET', job .. id, 'args', args, 'unique', name, 'st', state, unpack(fields))
  if ends > 0 then redis.call('HSET', job .. id, 'expires', now + ends) end
  if cap then redis.call('HSET', job .. id, 'cap', cap) end
  if state == 'scheduled' then
    local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', scheduled, due, id)
    if not nearest or due < tonumber(nearest) then wake_up(queue) end
  elseif state == 'ready' then
    local score = now - priority * 600000000
    if not key or #turns().await_turns(key, {score, id}) > 0 then line_up(id, queue, score) end
  end
end

-- Returns the job that stands for the new one, where that was not stored.
local function store_named(id, name, args, head)
  local rule = head[8] == true and {'done', 'existing'} or head[8]
  if not set_name(name, id, rule) then
    local holder, f, follower = take_over(name, id, rule)
    local act = CLASHES[rule[2]]
    if holder and not act then return holder end
    if holder then
      local more = f and redis.call('HMGET', job .. f.id, 'queue', 'task', 'owner', 'cap')
      if f then f.queue, f.task, f.owner, f.cap = more[1], more[2], more[3], tonumber(more[4]) end
      return act({holder = holder, f = f, follower = follower, put = put}, id, name, args, head)
    end
  end
  if rule[2] ~= 'debounce' then return put(id, name, args, head) end
  put(id, name, args, at_time(head, now + rule[3]), false, rule[4] > 0 and now + rule[4] or nil)
end
