-- Overview: how many jobs of the application are in each state, what queues and workers there are.
-- Bounded by live queues, tasks and workers, not by jobs or history. A queue that is empty, not paused and served by no
-- worker is idle. Of idle ones the first 500 are told, and the others forgotten.
-- include line_size records
-- keys    scheduled succeeded failed cancelled quarantined queues paused resumes pauses owners parking totals limited
-- keys    timers deploys wake parked claims facts=owner
-- arg     details      int   1: everything that workers say of themselves; 0: without what they say of their runners
-- route   all
-- return  {now, {state, count, ...}, {{queue, size, paused, its first job's score, and priority, end of its pause or 0,
--         why it is paused, how many jobs are behind limits, and since when the first of these waits or 0}, ...},
--         {{owner, lease end, running, {field, value, ...}}, ...}, {{task, parked}, ...}, bytes,
--         {version of code, its first start, ...}}
local IDLE, LOOK, FACTS = 500, 10000, {'place', 'queues', 'runners', 'sizes', 'busy', 'since'}
local lines, workers, tasks, waiting, running, parks = {}, {}, {}, 0, 0, 0
-- Queues by name, and whether they are told of even while they are idle.
local names, held = {}, {}
for _, queue in ipairs(redis.call('SRANDMEMBER', queues, LOOK)) do names[queue] = false end
for _, queue in ipairs(redis.call('SMEMBERS', paused)) do names[queue], held[queue] = true, true end

local function said(owner)
  if details == 1 then return redis.call('HGETALL', facts .. owner) end
  local found, flat = redis.call('HMGET', facts .. owner, unpack(FACTS)), {}
  for n, name in ipairs(FACTS) do
    if found[n] then flat[#flat + 1], flat[#flat + 2] = name, found[n] end
  end
  return flat
end
local all = redis.call('ZRANGE', owners, 0, -1, 'WITHSCORES')
for n = 1, #all, 2 do
  local holds, about = redis.call('ZCARD', claims .. all[n]), said(all[n])
  workers[#workers + 1] = {all[n], all[n + 1], holds, about}
  running = running + holds
  for m = 1, tonumber(all[n + 1]) > now and #about or 0, 2 do
    for queue in string.gmatch(about[m] == 'queues' and about[m + 1] or '', '[^,]+') do names[queue] = true end
  end
end

names._own = nil
local idle, forgotten, limits = 0, {}, redis.call('EXISTS', limited) == 1
for queue, stays in pairs(names) do
  local first = redis.call('ZRANGE', ready .. queue, 0, 0, 'WITHSCORES')
  local size, behind, since = first[1] and redis.call('ZCARD', ready .. queue) or 0, 0, nil
  if limits then size, behind, since = limiting().line_size(queue) end
  if size == 0 and not stays then idle = idle + 1 end
  if size == 0 and not stays and idle > IDLE then
    forgotten[#forgotten + 1] = queue
  else
    local priority = first[1] and redis.pcall('HGET', job .. first[1], 'priority')
    lines[#lines + 1] = {queue, size, held[queue] and 1 or 0, first[2] or 0,
      type(priority) == 'string' and priority or 0, held[queue] and redis.call('ZSCORE', resumes, queue) or 0,
      held[queue] and redis.call('HGET', pauses, queue) or '', behind, since and string.format('%.0f', since) or 0}
    waiting = waiting + size
  end
end
-- Without its token, or the next job of this queue would not name it again.
srem_all(queues, forgotten)
for n, queue in ipairs(forgotten) do forgotten[n] = wake .. queue end
unlink_all(forgotten)

for _, task in ipairs(redis.call('SMEMBERS', parking)) do
  if string.sub(task, 1, 9) ~= 'headrace.' then
    local count = redis.call('ZCARD', parked .. task)
    tasks[#tasks + 1] = {task, count}
    parks = parks + count
  end
end
local _, others = own_jobs()
local function less(state, count) return math.max(0, count - (others[state] or 0)) end
return {now, {'scheduled', less('scheduled', redis.call('ZCARD', scheduled) - redis.call('EXISTS', timers)),
  'ready', waiting, 'running', less('running', running), 'parked', parks,
  'blocked', less('blocked', tonumber(redis.call('HGET', totals, 'blocked') or 0)),
  'succeeded', less('succeeded', redis.call('ZCARD', succeeded)), 'failed', less('failed', redis.call('ZCARD', failed)),
  'cancelled', less('cancelled', redis.call('ZCARD', cancelled)),
  'quarantined', less('quarantined', redis.call('ZCARD', quarantined))},
  lines, workers, tasks, tonumber(redis.call('HGET', totals, 'bytes') or 0),
  redis.call('ZRANGE', deploys, 0, -1, 'WITHSCORES')}
