-- Load: what queues have to do: jobs that are ready, run, or come due soon; and how full the server is.
-- Changes nothing. Bounded by the workers and by `look`, not by the jobs that are stored.
-- include line_size
-- keys    scheduled owners ticking paused limited job claims
-- arg     names      packed  queues whose ready jobs are counted, at most 1000
-- arg     soon       int   microseconds ahead within which a scheduled job comes due
-- arg     look       int   most running jobs (one a worker at least), and most scheduled ones, whose queue is looked up
-- route   all
-- return  {now, {{ready, paused}, ...} of the names, {jobs that run, those looked at, {queue, count, ...}}, the same of
--         jobs that come due, when the first tick is due or 0, bytes of memory used, most of them or 0}
local function queues_of(ids, counts)
  for _, id in ipairs(ids) do
    local queue = redis.pcall('HGET', job .. id, 'queue')
    queue = type(queue) == 'string' and queue or 'default'
    counts[queue] = (counts[queue] or 0) + 1
  end
end

local function flat(total, looked, counts)
  local rows = {}
  for queue, count in pairs(counts) do rows[#rows + 1], rows[#rows + 2] = queue, count end
  return {total, looked, rows}
end

-- Each worker has its share of the look, so that none stands for all.
local running, looked, counts, workers = 0, 0, {}, redis.call('ZRANGE', owners, 0, -1)
local share = math.max(1, math.floor(look / math.max(1, #workers)))
for _, owner in ipairs(workers) do
  running = running + redis.call('ZCARD', claims .. owner)
  local ids = redis.call('ZRANGE', claims .. owner, 0, share - 1)
  looked = looked + #ids
  queues_of(ids, counts)
end
local busy = flat(running, looked, counts)

-- '~' stands for the first of the timers, and is not a job.
local soonest = now + soon
local timed = tonumber(redis.call('ZSCORE', scheduled, '~') or soonest + 1) <= soonest and 1 or 0
local due = redis.call('ZCOUNT', scheduled, '-inf', soonest) - timed
local ids, near = {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', scheduled, '-inf', soonest, 'LIMIT', 0, look + timed)) do
  if id ~= '~' then ids[#ids + 1] = id end
end
queues_of(ids, near)

local waiting, limits = {}, redis.call('EXISTS', limited) == 1
for n, queue in ipairs(names) do
  local size = limits and limiting().line_size(queue) or redis.call('ZCARD', ready .. queue)
  waiting[n] = {size, redis.call('SISMEMBER', paused, queue)}
end

-- A user who may not ask learns nothing of memory.
local info = redis.pcall('INFO', 'memory')
info = type(info) == 'string' and info or ''
local first = redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')
return {now, waiting, busy, flat(due, #ids, near), first[2] or 0,
  tonumber(string.match(info, 'used_memory:(%d+)') or 0), tonumber(string.match(info, 'maxmemory:(%d+)') or 0)}
