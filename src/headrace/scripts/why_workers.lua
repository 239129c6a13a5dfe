-- Why, workers: what incarnations say of themselves that matters to a job, and what keeps the server from storing.
-- keys    owners paused claims ready about=owner known=tasks
-- Queues of one worker that are looked at; workers whose lease is over that are, too; names of tasks that are told.
local QUEUES, SILENT, NAMES = 20, 20, 2000

-- Every worker serves the queue of built-in jobs.
local function serves(queues, queue)
  return queue == '_own' or string.find(',' .. queues .. ',', ',' .. queue .. ',', 1, true)
end

-- {queue, ready jobs, ...} of those that a worker prefers to this one.
local function preferred(queues, queue)
  local found, looked = {}, queue == '_own' and QUEUES or 0
  for name in string.gmatch(queues, '[^,]+') do
    if name == queue or looked == QUEUES then break end
    looked = looked + 1
    local size = redis.call('ZCARD', ready .. name)
    if size > 0 and redis.call('SISMEMBER', paused, name) == 0 then
      found[#found + 1], found[#found + 2] = name, size
    end
  end
  return found
end

-- {owner, end of its lease or 0, jobs that it holds, kind of the task in it or empty, place, queues, sizes, lease, time
-- of its last claim, 1 when it claims no more, weights of its queues, since when it is there, what it says of its
-- runners, preferred queues, and names of tasks that it knows where this is not one of them}.
local function worker_row(owner, queue, task)
  local said = redis.call('HMGET', about .. owner, 'place', 'queues', 'sizes', 'lease', 'first', 'draining', 'weights',
    'since')
  for n = 1, 8 do said[n] = said[n] or '' end
  local mine, names, kind = serves(said[2], queue), {}, redis.call('HGET', known .. owner, task)
  if mine and not kind then names = redis.call('HKEYS', known .. owner) end
  return {owner, redis.call('ZSCORE', owners, owner) or 0, redis.call('ZCARD', claims .. owner), kind or '', said[1],
    said[2], said[3], said[4], said[5], said[6],
    said[7], said[8], mine and redis.call('HGET', about .. owner, 'runner_facts') or '',
      mine and preferred(said[2], queue) or {}, #names <= NAMES and names or {}}
end

-- Live workers; and of those whose lease is over the ones that served the queue.
local function workers_for(queue, task, limit)
  local rows = {}
  for n, owner in ipairs(redis.call('ZRANGE', owners, '+inf', '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, limit)) do
    rows[n] = worker_row(owner, queue, task)
  end
  for _, owner in ipairs(redis.call('ZRANGE', owners, now, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, SILENT)) do
    if serves(redis.call('HGET', about .. owner, 'queues') or '', queue) then
      rows[#rows + 1] = worker_row(owner, queue, task)
    end
  end
  return rows
end

-- Where the access rules do not allow the question nothing is told.
local TELLING = {'role', 'slave_read_only', 'master_link_status', 'maxmemory', 'used_memory', 'maxmemory_policy',
  'rdb_last_bgsave_status', 'aof_last_write_status', 'min_slaves_good_slaves'}
local function server_facts()
  local text, found = '', {}
  for _, section in ipairs({'memory', 'persistence', 'replication'}) do
    local said = redis.pcall('INFO', section)
    if type(said) == 'table' then said = said.ok or '' end
    text = text .. '\n' .. said
  end
  local bounded = not string.find(text, '\nmaxmemory:0\r', 1, true)
  for _, name in ipairs(TELLING) do
    local value = string.match(text, '\n' .. name .. ':([^\r\n]*)')
    if value and (bounded or not string.find(name, 'memory', 1, true)) then
      found[#found + 1], found[#found + 2] = name, value
    end
  end
  return found
end
