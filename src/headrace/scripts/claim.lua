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
-- return  {ok, now, next due time or 0, {job, ...}, lost ids} | {gone}
-- A job is {id, token, queue, ready, task, args, options, key, failures, crashes, interruptions, snoozes, once}.
local lease = redis.call('ZSCORE', owners, owner)
if not lease or tonumber(lease) <= now then return {'gone'} end
local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0

local function record(id)
  local fields = redis.pcall('HMGET', job .. id, 'task', 'args', 'options', 'key', 'failures', 'crashes',
    'interruptions', 'snoozes', 'once', 'expires', 'queue')
  if fields.err then return nil end
  return fields
end

local function claimed(id, token, queue, score, f)
  return {id, token, queue, score, f[1] or '', f[2] or '', f[3] or '', f[4] or '', f[5] or 0, f[6] or 0,
    f[7] or 0, f[8] or 0, f[9] or 0}
end

local jobs, lost = {}, {}
local before = redis.call('HMGET', self, 'request', 'first')
if tonumber(before[1]) == request then
  local held = redis.call('ZRANGEBYSCORE', claims, before[2], '+inf', 'WITHSCORES')
  for n = 1, #held, 2 do
    local fields = record(held[n])
    if fields then jobs[#jobs + 1] = claimed(held[n], held[n + 1], fields[11] or '', 0, fields) end
  end
  return {'ok', now, nearest, jobs, lost}
end

local token = math.max(now, tonumber(redis.call('GET', last) or 0) + 1)
local first, holds, left = token, {}, limit
for _, queue in ipairs(names) do
  if left > 0 and redis.call('SISMEMBER', paused, queue) == 0 then
    local popped = redis.call('ZPOPMIN', ready .. queue, left)
    for n = 1, #popped, 2 do
      local id, fields = popped[n], record(popped[n])
      if not fields or not fields[1] then
        lost[#lost + 1] = id
        if fields and redis.call('EXISTS', job .. id) == 1 then
          finish(id, 'quarantined', '{"type":"Corrupt","message":"the record names no task"}', 604800000000)
        end
      elseif fields[10] and tonumber(fields[10]) and tonumber(fields[10]) < now then
        finish(id, 'cancelled', '{"type":"Expired","message":"it did not start before its time was over"}', 604800000000)
      else
        redis.call('HSET', job .. id, 'state', 'running', 'owner', owner, 'token', token)
        holds[#holds + 1] = token
        holds[#holds + 1] = id
        jobs[#jobs + 1] = claimed(id, token, queue, popped[n + 1], fields)
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
for n = 1, #holds, 1000 do
  redis.call('ZADD', claims, unpack(holds, n, math.min(n + 999, #holds)))
end
if #jobs > 0 then redis.call('SET', last, token - 1) end
redis.call('HSET', self, 'request', request, 'first', first)
finish_all()
return {'ok', now, nearest, jobs, lost}
