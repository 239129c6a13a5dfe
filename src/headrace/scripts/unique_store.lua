-- Unique store: a unique job is stored with its name or, where another one has that, its rule says what happens.
-- Included, never run alone.
-- include turn unique_clash
-- lazy    naming store_named
-- keys    scheduled
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
    if holder then return rule[2] == 'existing' and holder or clash(id, name, args, head, put, holder, f, follower) end
  end
  if rule[2] ~= 'debounce' then return put(id, name, args, head) end
  put(id, name, args, at_time(head, now + rule[3]), false, rule[4] > 0 and now + rule[4] or nil)
end
