-- Claim: ready jobs of several queues become running, leased to one dispatcher incarnation.
-- include ids wake lease unique_start serve node_start pass_over changed
-- keys    self=owner:<owner> claims:<owner> paused scheduled last=token
-- removes first claims
-- arg     request    int     number of the request; the same again means: the reply was lost, answer alike
-- arg     limit      int     most jobs, at most 1000
-- arg     names      packed  queues, first come first
-- arg     own        int     most jobs of the queue _own
-- arg     passing    text    empty or, packed, {{kind, most, {task, ...}}, ...}, {queue, score, id, ...}}: no more of
--                            such kinds are claimed, others are; the entries of queues behind which to go on
-- route   desk
-- return  {ok, now, next due time or 0, {id, token, queue, score, task, args, ...}, {{id, rest}, ...}, {id, options,
--         parents, facts, ...}, lost ids, how many paused queues it met, {limited id, what it holds, ...}} | {gone};
--         with kinds to pass over also {those that were}, {queue, score, id of the last one looked at, 1: more behind
--         it, ...}
-- The rest of a job, where its record says that there is more: options, key, failures, crashes, interruptions, snoozes,
-- once, expires, priority, attempts, and as far as it has any, headers, cost, limited, logged.
-- What every node has comes in a list of its own.
-- A job whose time is over, or whose record names no task, is claimed as any other: its worker settles it so.
local ends = tonumber(redis.call('ZSCORE', owners, owner) or 0)
if ends <= now and not leases().lease_end(owner) then return {'gone'} end
local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0

local jobs, more, nodes, lost, size, bytes = {}, {}, {}, {}, 0, 0

-- One flat list for all jobs: a table for each would cost more than its content.
local function claimed(id, token, queue, score, f, node)
  -- One by one: Lua would store the last of several first, out of line.
  jobs[size + 1] = id
  jobs[size + 2] = token
  jobs[size + 3] = queue
  jobs[size + 4] = score
  jobs[size + 5] = f[1] or ''
  jobs[size + 6] = f[2] or '\146\144\128'
  size, bytes = size + 6, bytes + #jobs[size + 6]
  if f[3] then
    local rest = redis.call('HMGET', job .. id, 'options', 'key', 'failures', 'crashes', 'interruptions', 'snoozes',
      'once', 'expires', 'priority', 'attempts', 'headers', 'cost', 'limited', 'logged', 'followed')
    if rest[15] then naming().changed(id, rest[15]) rest[15] = false end
    -- No byte for what few jobs have.
    while #rest > 10 and not rest[#rest] do rest[#rest] = nil end
    more[#more + 1] = {id, rest}
  end
  if node then
    local at = #nodes
    nodes[at + 1], nodes[at + 2], nodes[at + 3], nodes[at + 4] = id, f[4] or '', f[5] or '', f[6] or ''
  end
end

local before = redis.call('HMGET', self, 'request', 'first', 'limits')
-- An older number is a request that was given up and reached the server late: it must not claim without a reader.
if (tonumber(before[1]) or 0) >= request then
  local held, ids = redis.call('ZRANGEBYSCORE', claims, before[2], '+inf', 'WITHSCORES'), {}
  for n = 1, #held, 2 do
    local fields = redis.pcall('HMGET', job .. held[n], 'task', 'args', 'more', 'options', 'parents', 'facts', 'queue')
    if not fields.err then claimed(held[n], held[n + 1], fields[7] or 'default', 0, fields, is_node(held[n])) end
    ids[#ids + 1] = held[n]
  end
  return {'ok', now, nearest, jobs, more, nodes, lost, 0, #ids > 0 and limiting().held_by_these(owner, ids) or {}}
end

local token = math.max(now, tonumber(redis.call('GET', last) or 0) + 1)
local first, holds, left = token, {}, limit

-- The fields of a record, and whether it is a node.
local function read(id)
  if is_node(id) then
    return redis.pcall('HMGET', job .. id, 'task', 'args', 'more', 'options', 'parents', 'facts'), true
  end
  return redis.pcall('HMGET', job .. id, 'task', 'args', 'more'), false
end

-- full: it brings 4 MiB of arguments, or more by its last job. A longer reply could outlast the lease.
local ways = {read = read, looks = before[3], full = false}

-- What has left its queue is leased, unless its record is gone or its workflow does not let it start. A workflow waits
-- for the end of its node anyway: a node without a record is leased, and ends as any job that names no task.
ways.take = function(queue, id, score, fields, node)
  if fields.err or not (fields[1] or node) and redis.call('EXISTS', job .. id) == 0 then
    lost[#lost + 1] = id
  elseif not node or starting().may_start(id, score) then
    redis.call('HSET', job .. id, 'st', 'running', 'owner', owner, 'token', token)
    holds[#holds + 1] = token
    holds[#holds + 1] = id
    claimed(id, token, queue, score, fields, node)
    token = token + 1
    ways.full = bytes >= 4194304
    if fields[3] and is_unique(id) then naming().name_started(id) end
    return true
  end
end

-- Most claims pass over nothing, and most jobs have no limits: what these need is made for the others only.
local crowded, halted = passing ~= '' and crowding().pass_over(passing, ways), 0
for _, queue in ipairs(names) do
  if left <= 0 or ways.full then break end
  if redis.call('SISMEMBER', paused, queue) == 1 then
    halted = halted + 1
  elseif crowded and string.byte(queue) ~= 64 and queue ~= '_own' then
    left = crowded.look(queue, left)
  else
    -- Few steps for each job without limits: every one passes here.
    local most = queue == '_own' and math.min(own, left) or left
    local popped, byte, looks, take, took, rest = redis.call('ZPOPMIN', ready .. queue, most), string.byte, ways.looks,
      ways.take, 0, nil
    for n = 1, #popped, 2 do
      local id = popped[n]
      if byte(id) == 126 or ways.full then
        rest = {unpack(popped, n)}
        break
      elseif not looks then
        take(queue, id, popped[n + 1], read(id))
        took = took + 1
      elseif limiting().take_plain(queue, id, popped[n + 1], ways) then
        took = took + 1
      else
        -- It went to its lane: others come in its place.
        rest = rest or {}
      end
    end
    left = left - took
    if rest then
      left = limiting().serve_line(queue, rest, left, ways)
    end
  end
end
local due, limits_held = nil, {}
if batch.limiting then due, limits_held = batch.limiting.store_holding(owner) end
if due and (tonumber(nearest) == 0 or tonumber(due) < tonumber(nearest)) then nearest = due end
-- A full claim leaves work behind, also in queues that it did not reach: the token that it came for may be theirs.
if left <= 0 or ways.full then
  for _, queue in ipairs(names) do
    if redis.call('EXISTS', ready .. queue) == 1 and redis.call('SISMEMBER', paused, queue) == 0 then wake_up(queue) end
  end
end
-- A long member that comes and goes keeps the set from its compact form, whose search costs a fifth of a job.
local large = #holds > 32
if large then redis.call('ZADD', claims, 0, string.rep('-', 65)) end
if size > 0 then redis.call('ZADD', claims, unpack(holds)) end
if large then redis.call('ZREM', claims, string.rep('-', 65)) end
if size > 0 then redis.call('SET', last, token - 1) end
redis.call('HSET', self, 'request', request, 'first', first)
if not crowded then return {'ok', now, nearest, jobs, more, nodes, lost, halted, limits_held} end
return {'ok', now, nearest, jobs, more, nodes, lost, halted, limits_held, crowded.kinds, crowded.looked}
