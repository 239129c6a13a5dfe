-- Claim: ready jobs of several queues become running, leased to one dispatcher incarnation.
-- include ids
-- include wake
-- include lease
-- include slice
-- include unique_start
-- include serve
-- commit  batch
-- clock   now
-- key     self       hash    owner:<owner>    the incarnation's last request
-- key     claims     zset    claims:<owner>
-- key     paused     set     paused
-- key     last       string  token            last fencing token
-- key     scheduled  zset    scheduled
-- derive  ready      zset    ready:<queue>
-- derive  job        hash    job:<id>
-- derive  log        list    log:<id>
-- derive  flow       hash    flow:<flow>
-- derive  held       zset    held:<flow>
-- many    ZADD
-- removes first claims
-- arg     owner      text    the incarnation
-- arg     request    int     number of the request; the same again means: the reply was lost, answer alike
-- arg     limit      int     most jobs, at most 1000
-- arg     names      packed  queues, first come first
-- arg     passing    text    empty or, packed, {{kind, most, {task, ...}}, ...}, {queue, score, id, ...}}: of such kinds no more are claimed, others of any kind
--                            are; behind which entries of a queue to go on looking for them
-- return  {ok, now, next due time or 0, {id, token, queue, score, task, args, ...}, {{id, rest}, ...}, {id, options, parents, facts, ...}, lost ids, how many paused queues it met} | {gone}
-- With kinds to pass over also {kinds that were}, {queue, score, id of the last entry looked at, 1 where others are behind it, ...}.
-- The rest of a job, where its record says that there is more: options, key, failures, crashes, interruptions, snoozes, once, expires, priority, attempts, and as far as it has any, headers, cost, limited.
-- What every node has comes in a list of its own.
-- A job whose time is over, or whose record names no task, is claimed as any other: whoever claimed it settles it so.
if not lease_end(owner) then return {'gone'} end
local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0

local jobs, more, nodes, lost, size = {}, {}, {}, {}, 0

-- One flat list for all jobs: a table for each would cost more than its content.
local function claimed(id, token, queue, score, f)
  jobs[size + 1], jobs[size + 2], jobs[size + 3] = id, token, queue
  jobs[size + 4], jobs[size + 5], jobs[size + 6] = score, f[1] or '', f[2] or ''
  size = size + 6
  if f[3] then
    local rest = redis.call('HMGET', job .. id, 'options', 'key', 'failures', 'crashes', 'interruptions', 'snoozes', 'once', 'expires', 'priority',
      'attempts', 'headers', 'cost', 'limited')
    -- No byte for what few jobs have.
    while #rest > 10 and not rest[#rest] do rest[#rest] = nil end
    more[#more + 1] = {id, rest}
  end
  if is_node(id) then
    local at = #nodes
    nodes[at + 1], nodes[at + 2], nodes[at + 3], nodes[at + 4] = id, f[4] or '', f[5] or '', f[6] or ''
  end
end

-- Whether a workflow's node may start: not while its workflow is stopped, never when that was deleted. What undoes a
-- cancelled one may, and who is told of its end.
local flows = {}
local function may_start(id, score)
  local fid = flow_of(id)
  flows[fid] = flows[fid] or redis.call('HMGET', flow .. fid, 'state', 'stopped', 'cancel')
  local f = flows[fid]
  if not f[1] then
    redis.call('UNLINK', job .. id, log .. id)
    return false
  end
  if not f[2] and not f[3] then return true end
  local role = redis.call('HGET', job .. id, 'role')
  if role == 'callback' or role == 'undo' and not f[2] then return true end
  redis.call('HSET', job .. id, 'state', 'stopped')
  redis.call('ZADD', held .. fid, score, id)
end

local before = redis.call('HMGET', self, 'request', 'first', 'limits')
-- An older number is a request that was given up and reached the server late: it must not claim for nobody.
if (tonumber(before[1]) or 0) >= request then
  local held = redis.call('ZRANGEBYSCORE', claims, before[2], '+inf', 'WITHSCORES')
  for n = 1, #held, 2 do
    local fields = redis.pcall('HMGET', job .. held[n], 'task', 'args', 'more', 'options', 'parents', 'facts', 'queue')
    if not fields.err then claimed(held[n], held[n + 1], fields[7] or 'default', 0, fields) end
  end
  return {'ok', now, nearest, jobs, more, nodes, lost, 0}
end

local token = math.max(now, tonumber(redis.call('GET', last) or 0) + 1)
local first, holds, left = token, {}, limit

local function read(id)
  if is_node(id) then return redis.pcall('HMGET', job .. id, 'task', 'args', 'more', 'options', 'parents', 'facts') end
  return redis.pcall('HMGET', job .. id, 'task', 'args', 'more')
end

-- What has left its queue is leased, unless its record is gone or its workflow does not let it start.
local function take(queue, id, score, fields)
  if fields.err or not fields[1] and redis.call('EXISTS', job .. id) == 0 then
    lost[#lost + 1] = id
  elseif not is_node(id) or may_start(id, score) then
    local text = string.format('%.0f', token)
    redis.call('HSET', job .. id, 'state', 'running', 'owner', owner, 'token', text)
    holds[#holds + 1] = text
    holds[#holds + 1] = id
    claimed(id, text, queue, score, fields)
    token = token + 1
    if fields[3] and is_unique(id) then uniques().name_started(id) end
    return true
  end
end

-- Those that have limits leave the line for their lanes, where these were declared after the jobs had come.
local function to_lane(queue, id, score, fields)
  if fields.err or not fields[1] or string.byte(queue) == 64 or not limiting().limits_of(fields[1], queue) then return false end
  return #limiting().lanes().sort(queue, {score, id}) == 0
end

local function take_plain(queue, id, score)
  local fields = read(id)
  if before[3] and to_lane(queue, id, score, fields) then return false end
  take(queue, id, score, fields)
  return true
end

-- A limited job leaves its lane. One whose time is over starts nothing, so it passes no gate.
local function take_limited(queue, id, score, passes, may)
  local fields = read(id)
  local rest = not fields.err and fields[3] and redis.call('HMGET', job .. id, 'expires', 'cost') or {}
  local over, cost = (tonumber(rest[1]) or math.huge) <= now, limiting().cost_of(rest[2])
  if cost > 1 and not over and limiting().gates().too_dear(passes, cost) then return 'dear' end
  if not fields.err and may and not may(queue, fields[1]) then return 'later' end
  return take(queue, id, score, fields) and not over and 'taken' or 'gone', cost
end

-- Entries that one claim looks at in a queue: all at its front, or FRONT there and the rest behind the cursor. What comes to
-- be in between meanwhile, by its priority, is found when it is at the front.
local LOOK, FRONT = 200, 50
local passed, looked, pass_over = {}, {}, nil
-- Most claims pass over nothing: what follows is made for the others only.
if passing ~= '' then
  local rooms, kinds, cursors, told = {}, {}, {}, {}
  local crowded, behind = unpack(cmsgpack.unpack(passing))
  for _, row in ipairs(crowded) do
    rooms[row[1]] = row[2]
    for _, task in ipairs(row[3]) do kinds[task] = row[1] end
  end
  for n = 1, #behind, 3 do cursors[behind[n]] = {behind[n + 1], behind[n + 2]} end

  -- Whether there is room for a task's kind, which is taken then.
  local function may(queue, task)
    local kind = kinds[task or '']
    if kind and rooms[kind] <= 0 then
      passed[kind] = true
      -- One who sleeps and has room for it hears of it, once. A token of the queue would come back to us.
      local line = wake .. queue .. '|' .. kind
      if not told[line] then redis.call('ZADD', line, 0, '') end
      told[line] = true
      return false
    end
    if kind then rooms[kind] = rooms[kind] - 1 end
    return true
  end

  -- Claims from at most so many entries behind one; returns the last of them, and whether there are others behind it.
  local function look(queue, after, most)
    local _, rows = slice(ready .. queue, after[1], after[2], 0, most, 0, '-inf', '+inf')
    for n = 1, #rows, 2 do
      if left == 0 then return after, 1 end
      after = {rows[n + 1], rows[n]}
      local fields = read(rows[n])
      if string.byte(rows[n]) == 126 then
        redis.call('ZREM', ready .. queue, rows[n])
        left = limiting().serve_line(queue, {rows[n], rows[n + 1]}, left, function(id, score, passes) return take_limited(queue, id, score, passes, may) end)
      elseif before[3] and to_lane(queue, rows[n], rows[n + 1], fields) then
        redis.call('ZREM', ready .. queue, rows[n])
      elseif may(queue, fields[1]) then
        redis.call('ZREM', ready .. queue, rows[n])
        take(queue, rows[n], rows[n + 1], fields)
        left = left - 1
      end
    end
    return after, #rows == 2 * most and 1 or 0
  end

  pass_over = function(queue)
    local cursor, before, rest = cursors[queue], left, nil
    local at = cursor
    if cursor then
      look(queue, {'', ''}, FRONT)
      local found = left < before
      at, rest = look(queue, cursor, LOOK - FRONT)
      -- Where something has come before the cursor there may be more.
      if found then rest = 1 end
    else
      at, rest = look(queue, {'', ''}, LOOK)
    end
    if at[1] ~= '' then
      local n = #looked
      looked[n + 1], looked[n + 2], looked[n + 3], looked[n + 4] = queue, at[1], at[2], rest
    end
  end
end

local halted = 0
for _, queue in ipairs(names) do
  if left > 0 and redis.call('SISMEMBER', paused, queue) == 1 then
    halted = halted + 1
  elseif left > 0 then
    if pass_over and string.sub(queue, 1, 1) ~= '@' then
      pass_over(queue)
    else
      -- Few steps for each job without limits: every one passes here.
      local popped, looks, byte, took, rest = redis.call('ZPOPMIN', ready .. queue, left), before[3], string.byte, 0, nil
      for n = 1, #popped, 2 do
        local id = popped[n]
        if byte(id) == 126 then
          rest = {unpack(popped, n)}
          break
        elseif not looks then
          take(queue, id, popped[n + 1], read(id))
          took = took + 1
        elseif take_plain(queue, id, popped[n + 1]) then
          took = took + 1
        else
          -- It went to its lane: others come in its place.
          rest = rest or {}
        end
      end
      left = left - took
      if rest then
        left = limiting().serve_line(queue, rest, left, function(one, score, passes) return take_limited(queue, one, score, passes) end,
          function(one, score) return take_plain(queue, one, score) end)
      end
    end
  end
end
local due = batch.limiting and batch.limiting.store_holding(owner)
if due and (tonumber(nearest) == 0 or tonumber(due) < tonumber(nearest)) then nearest = due end
-- A full claim leaves work behind, also in queues that it did not reach: the token that it came for may be theirs.
if left <= 0 then
  for _, queue in ipairs(names) do
    if redis.call('EXISTS', ready .. queue) == 1 and redis.call('SISMEMBER', paused, queue) == 0 then wake_up(queue) end
  end
end
-- A long member that comes and goes keeps the set out of its compact form, which is searched from end to end for each
-- member: with a hundred claims that was a fifth of what the server did for a job.
local large = #holds > 32
if large then redis.call('ZADD', claims, 0, string.rep('-', 65)) end
zadd_all(claims, holds)
if large then redis.call('ZREM', claims, string.rep('-', 65)) end
if size > 0 then redis.call('SET', last, token - 1) end
redis.call('HSET', self, 'request', request, 'first', first)
if not pass_over then return {'ok', now, nearest, jobs, more, nodes, lost, halted} end
local over = {}
for kind in pairs(passed) do over[#over + 1] = kind end
return {'ok', now, nearest, jobs, more, nodes, lost, halted, over, looked}
