-- Finish: a job reaches a final state; the one way out, whatever the cause.
-- The caller takes the job out of its old structure.
-- include node edges turn telling unique_holder
-- keys    succeeded failed cancelled quarantined expires totals waited chores log done
-- batch   gone      {}   keys of the jobs that do not stay
-- batch   indexed   {}   by state: {time, id, ...} of those that stay
-- batch   retained  {}   {end of retention, id, ...} of those that stay
-- batch   bytes     0    that their results and errors take
-- batch   told      {}   {id, state} of each that is waited for
-- batch   ended_badly  nil  whether any job failed or is quarantined
-- batch   waits     nil  whether any job is waited for, once that was asked
-- batch   followed  nil  whether other jobs follow one of them
-- step    store_ends
local finals = {succeeded = succeeded, failed = failed, cancelled = cancelled, quarantined = quarantined}

-- A waiter reads the result after it was woken: a job that is waited for stays for a minute at least. ttl: microseconds
-- that it stays; 0: it leaves; -1: it leaves, and has no log. To unlink a log that is not there costs a cache miss.
local function finish(id, state, data, ttl)
  if batch.waits == nil then batch.waits = redis.call('EXISTS', waited) == 1 end
  local waits = batch.waits and redis.call('ZSCORE', waited, id)
  if waits then
    ttl = math.max(ttl, 60000000)
    batch.told[#batch.told + 1] = {id, state}
    -- Other jobs follow it: see after.
    if tonumber(waits) >= 9000000000000000 then
      redis.call('ZADD', chores, now, 'after:' .. id .. ':' .. state)
      batch.followed = true
    end
  end
  if state == 'failed' or state == 'quarantined' then
    batch.ended_badly = true
    telling().ended_badly(id, state, data)
  end
  if not is_plain(id) then
    if is_unique(id) then naming().name_ended(id, state) end
    if is_ordered(id) then turns().pass_on(id) end
    if is_node(id) then
      local f = graph().touch(flow_of(id))
      if f.there then return graph().end_node(id, f, state, data) end
      -- Its workflow was deleted: nothing of it may come back.
      ttl = 0
    end
  end
  if ttl <= 0 then
    local gone = batch.gone
    local n = #gone
    gone[n + 1] = job .. id
    if ttl == 0 then gone[n + 2] = log .. id end
    return
  end
  local field = state == 'succeeded' and 'result' or 'error'
  -- A job that ran has an owner. Where nothing is taken away the record may have been deleted, and is not written anew.
  if redis.call('HDEL', job .. id, 'owner', 'cancel', field == 'result' and 'error' or 'result') == 0
    and redis.call('EXISTS', job .. id) == 0 then return end
  redis.call('HSET', job .. id, 'st', state, 'finished', now, field, data)
  batch.bytes = batch.bytes + #data
  local ended, retained = batch.indexed[state], batch.retained
  if not ended then ended = {} batch.indexed[state] = ended end
  local n, m = #ended, #retained
  ended[n + 1], ended[n + 2] = now, id
  retained[m + 1], retained[m + 2] = now + ttl, id
end

local function store_ends()
  if batch.ended_badly then telling().store_causes() end
  unlink_all(batch.gone)
  for state, ended in pairs(batch.indexed) do zadd_all(finals[state], ended) end
  zadd_all(expires, batch.retained)
  if batch.bytes > 0 then redis.call('HINCRBY', totals, 'bytes', batch.bytes) end
  for _, pair in ipairs(batch.told) do
    redis.call('ZREM', waited, pair[1])
    redis.call('PUBLISH', done .. pair[1], pair[2])
  end
end
