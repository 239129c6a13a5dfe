-- Overview: how many jobs are in each state, what queues and workers there are. Bounded by queues, tasks and workers, not by jobs.
-- clock   now
-- key     scheduled    zset  scheduled
-- key     succeeded    zset  succeeded
-- key     failed       zset  failed
-- key     cancelled    zset  cancelled
-- key     quarantined  zset  quarantined
-- key     queues       set   queues
-- key     paused       set   paused
-- key     resumes      zset  resumes
-- key     owners       zset  owners
-- key     parking      set   parking
-- key     totals       hash  totals
-- derive  ready        zset  ready:<queue>
-- derive  parked       zset  parked:<task>
-- derive  claims       zset  claims:<owner>
-- derive  facts        hash  owner:<owner>
-- return  {now, {state, count, ...}, {{queue, size, paused, oldest, end of its pause or 0}, ...}, {{owner, lease end, running, {field, value, ...}}, ...}, {{task, parked}, ...}, bytes}
local lines, workers, tasks, waiting, running, idle = {}, {}, {}, 0, 0, 0
local function both(one, other)
  local seen = {}
  for _, name in ipairs(redis.call('SMEMBERS', one)) do seen[name] = true end
  for _, name in ipairs(redis.call('SMEMBERS', other)) do seen[name] = true end
  return seen
end
for queue in pairs(both(queues, paused)) do
  local size = redis.call('ZCARD', ready .. queue)
  local oldest = redis.call('ZRANGE', ready .. queue, 0, 0, 'WITHSCORES')[2] or 0
  lines[#lines + 1] = {queue, size, redis.call('SISMEMBER', paused, queue), oldest, redis.call('ZSCORE', resumes, queue) or 0}
  waiting = waiting + size
end
local all = redis.call('ZRANGE', owners, 0, -1, 'WITHSCORES')
for n = 1, #all, 2 do
  local holds = redis.call('ZCARD', claims .. all[n])
  workers[#workers + 1] = {all[n], all[n + 1], holds, redis.call('HGETALL', facts .. all[n])}
  running = running + holds
end
for _, task in ipairs(redis.call('SMEMBERS', parking)) do
  local count = redis.call('ZCARD', parked .. task)
  tasks[#tasks + 1] = {task, count}
  idle = idle + count
end
return {now, {'scheduled', redis.call('ZCARD', scheduled), 'ready', waiting, 'running', running, 'parked', idle,
  'blocked', tonumber(redis.call('HGET', totals, 'blocked') or 0),
  'succeeded', redis.call('ZCARD', succeeded), 'failed', redis.call('ZCARD', failed),
  'cancelled', redis.call('ZCARD', cancelled), 'quarantined', redis.call('ZCARD', quarantined)},
  lines, workers, tasks, tonumber(redis.call('HGET', totals, 'bytes') or 0)}
