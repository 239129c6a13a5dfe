-- Claim: ready jobs of several queues become running, leased to one dispatcher incarnation.
-- include finish
-- include line
-- clock   now
-- key     owners     zset    owners           end of each lease
-- key     self       hash    owner:<owner>    the incarnation's last request
-- key     claims     zset    claims:<owner>
-- key     paused     set     paused
-- key     last       string  token            last fencing token
-- key     scheduled  zset    scheduled
-- arg     owner      text    the incarnation
-- arg     request    int     number of the request; the same again means: the reply was lost, answer alike
-- arg     limit      int     most jobs, at most 1000
-- arg     names      packed  queues, first come first
-- return  {ok, now, next due time or 0, {id, token, queue, ready, task, args, ...}, {{id, rest}, ...}, lost ids} | {gone}
-- The rest of a job, where its record says that there is more: options, key, failures, crashes, interruptions, snoozes, once.
local lease = redis.call('ZSCORE', owners, owner)
if not lease or tonumber(lease) <= now then return {'gone'} end
local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0

local jobs, more, lost, size = {}, {}, {}, 0

-- One flat list for all jobs: a table for each would cost more than its content.
local function claimed(id, token, queue, score, f)
  jobs[size + 1], jobs[size + 2], jobs[size + 3] = id, token, queue
  jobs[size + 4], jobs[size + 5], jobs[size + 6] = score, f[1], f[2] or ''
  size = size + 6
  if f[3] then
    more[#more + 1] = {id, redis.call('HMGET', job .. id, 'options', 'key', 'failures', 'crashes', 'interruptions', 'snoozes', 'once')}
  end
end

local function overdue(id)
  local ends = tonumber(redis.call('HGET', job .. id, 'expires') or '')
  return ends and ends < now
end

local before = redis.call('HMGET', self, 'request', 'first')
if tonumber(before[1]) == request then
  local held = redis.call('ZRANGEBYSCORE', claims, before[2], '+inf', 'WITHSCORES')
  for n = 1, #held, 2 do
    local fields = redis.pcall('HMGET', job .. held[n], 'task', 'args', 'more', 'queue')
    if fields[1] then claimed(held[n], held[n + 1], fields[4] or 'default', 0, fields) end
  end
  return {'ok', now, nearest, jobs, more, lost}
end

-- A removal comes first: once a script has written, a server whose memory is full lets it write on.
redis.call('ZREM', claims, '')
local token = math.max(now, tonumber(redis.call('GET', last) or 0) + 1)
local first, holds, left = token, {}, limit
for _, queue in ipairs(names) do
  if left > 0 and redis.call('SISMEMBER', paused, queue) == 0 then
    local popped = redis.call('ZPOPMIN', ready .. queue, left)
    for n = 1, #popped, 2 do
      local id = popped[n]
      local fields = redis.pcall('HMGET', job .. id, 'task', 'args', 'more')
      if not fields[1] then
        lost[#lost + 1] = id
        if not fields.err and redis.call('EXISTS', job .. id) == 1 then
          finish(id, 'quarantined', '{"type":"Corrupt","message":"the record names no task"}', 604800000000)
        end
      elseif fields[3] and overdue(id) then
        finish(id, 'cancelled', '{"type":"Expired","message":"it did not start before its time was over"}', 604800000000)
      else
        local text = string.format('%.0f', token)
        redis.call('HSET', job .. id, 'state', 'running', 'owner', owner, 'token', text)
        holds[#holds + 1] = text
        holds[#holds + 1] = id
        claimed(id, text, queue, popped[n + 1], fields)
        token = token + 1
      end
    end
    left = left - #popped / 2
  end
end
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
for n = 1, #holds, 1000 do
  redis.call('ZADD', claims, unpack(holds, n, math.min(n + 999, #holds)))
end
if large then redis.call('ZREM', claims, string.rep('-', 65)) end
if size > 0 then redis.call('SET', last, token - 1) end
redis.call('HSET', self, 'request', request, 'first', first)
finish_all()
return {'ok', now, nearest, jobs, more, lost}
