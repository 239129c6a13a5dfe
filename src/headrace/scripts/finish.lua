-- Finish: a job reaches a final state; the one way out, whatever the cause. Included, never run alone.
-- Collects a batch: finish(...) for each job, then finish_all() once, which also lines up what became ready by it. The caller takes the job out of its old structure.
-- include node
-- include turn
-- clock   now
-- key     succeeded    zset  succeeded     finished and kept, by time
-- key     failed       zset  failed        likewise
-- key     cancelled    zset  cancelled     likewise
-- key     quarantined  zset  quarantined   likewise
-- key     expires      zset  expires       finished and kept, by the end of retention
-- key     totals       hash  totals        bytes that kept results and errors take
-- key     waited       zset  waited        ids that somebody waits for
-- derive  job          hash  job:<id>
-- derive  log          list  log:<id>
-- channel done         done:<id>           told the final state
local finals = {succeeded = succeeded, failed = failed, cancelled = cancelled, quarantined = quarantined}
local gone, retained, indexed, told, bytes = {}, {}, {}, {}, 0
local anyone_waits

-- A waiter reads the result after it was woken: a job that is waited for stays for a minute at least.
local function finish(id, state, data, ttl)
  if anyone_waits == nil then anyone_waits = redis.call('EXISTS', waited) == 1 end
  local waits = anyone_waits and redis.call('ZSCORE', waited, id)
  if waits then ttl = math.max(ttl, 60000000) told[#told + 1] = {id, state} end
  if is_ordered(id) then turns().ended(id) end
  if is_node(id) then
    local f = touch(flow_of(id))
    if f.there then return end_node(id, f, state, data) end
    -- Its workflow was deleted: nothing of it may come back.
    ttl = 0
  end
  if ttl <= 0 then
    gone[#gone + 1] = job .. id
    gone[#gone + 1] = log .. id
    return
  end
  local field = state == 'succeeded' and 'result' or 'error'
  -- A job that ran has an owner. Where nothing is taken away the record may have been deleted, and is not written anew.
  if redis.call('HDEL', job .. id, 'owner', 'cancel', field == 'result' and 'error' or 'result') == 0
    and redis.call('EXISTS', job .. id) == 0 then return end
  redis.call('HSET', job .. id, 'state', state, 'finished', now, field, data)
  bytes = bytes + #data
  indexed[state] = indexed[state] or {}
  table.insert(indexed[state], now)
  table.insert(indexed[state], id)
  retained[#retained + 1] = now + ttl
  retained[#retained + 1] = id
end

local function finish_all()
  walk_all()
  for first = 1, #gone, 1000 do
    redis.call('UNLINK', unpack(gone, first, math.min(first + 999, #gone)))
  end
  for state, pairs_of in pairs(indexed) do
    for first = 1, #pairs_of, 1000 do
      redis.call('ZADD', finals[state], unpack(pairs_of, first, math.min(first + 999, #pairs_of)))
    end
  end
  for first = 1, #retained, 1000 do
    redis.call('ZADD', expires, unpack(retained, first, math.min(first + 999, #retained)))
  end
  if bytes > 0 then redis.call('HINCRBY', totals, 'bytes', bytes) end
  line_up_all()
  for _, pair in ipairs(told) do
    redis.call('ZREM', waited, pair[1])
    redis.call('PUBLISH', done .. pair[1], pair[2])
  end
end
