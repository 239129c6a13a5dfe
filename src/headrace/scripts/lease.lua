-- Lease: whose runs, though the server may have been away, and its clock set.
-- lazy    leases repair lease_end rewind
-- keys    owners about=owner scheduled timers chores resumes pauses
-- Renewals come each 0.4 of a lease. When none came from anybody for half of one, the server was away, or every worker.
-- Then each incarnation whose lease is over, or soon will be, gets time to come back: a stall of the server is not a
-- crash of a job. An incarnation that does not come back between such outages is spared a few times only, since it may
-- be dead. Leases may differ: half of the lease of the one at stake counts. Where only workers with longer leases have
-- said nothing for so long, they may just have had no reason to, and it is spared once.
local COME_BACK, HALF, SPARED_MOST = 5000000, 0.5, 10

-- For who finds an end that cannot be, or is over: costs as much as there are workers, no more often than they all were
-- silent. lease: of the one at stake. Returns until when some are spared, 0 for none.
local function repair(lease)
  local function spare(owner, ends, length, most)
    local till = now + math.min(length, COME_BACK)
    local before = redis.pcall('HMGET', about .. owner, 'spared', 'times')
    local times = tonumber(before[1] or 0) == ends and tonumber(before[2]) or 0
    if before.err or ends <= 0 or ends >= till or times >= most then return end
    redis.call('ZADD', owners, till, owner)
    redis.call('HSET', about .. owner, 'spared', till, 'times', times + 1)
    return till
  end

  local rows, found, most = redis.call('ZRANGE', owners, 0, -1, 'WITHSCORES'), {}, SPARED_MOST
  for n = #rows - 1, 1, -2 do
    local length = tonumber(redis.pcall('HGET', about .. rows[n], 'lease')) or lease
    local stored = tonumber(rows[n + 1])
    local ends = math.min(stored, now + length)
    -- An end further ahead than a whole lease was written before the clock was set back: believed till then.
    if ends < stored then redis.call('ZADD', owners, ends, rows[n]) end
    local silent = stored <= now + length and now - (ends - length) or math.huge
    if silent < HALF * lease then return 0 end
    if silent < HALF * length then most = 1 end
    found[#found + 1] = {rows[n], ends, length}
  end
  local till = 0
  for _, row in ipairs(found) do till = math.max(till, spare(row[1], row[2], row[3], most) or 0) end
  return till
end

-- When its lease ends; nil: it is over, or was given up.
local function lease_end(owner)
  local ends = tonumber(redis.call('ZSCORE', owners, owner) or 0)
  if ends > 0 and ends <= now then
    repair(tonumber(redis.pcall('HGET', about .. owner, 'lease')) or COME_BACK)
    ends = tonumber(redis.call('ZSCORE', owners, owner))
  end
  return ends > now and ends or nil
end

-- The clock was set back: what began while it was ahead ends when its length is over, not at its old time.
local function rewind()
  -- Limits: timers are looked at in pieces, see limit_timers.
  if redis.call('EXISTS', timers) == 1 then
    redis.call('ZADD', timers, now, 'clock:0')
    redis.call('ZADD', scheduled, now, '~')
  end
  -- Background work waits for no time of its own.
  for _, chore in ipairs(redis.call('ZRANGE', chores, 0, 999)) do
    if string.sub(chore, 1, 8) ~= 'abandon:' then redis.call('ZADD', chores, 'LT', now, chore) end
  end
  for _, queue in ipairs(redis.call('ZRANGE', resumes, 0, 999)) do
    local length = tonumber(redis.call('HGET', pauses, '~' .. queue))
    if length then redis.call('ZADD', resumes, 'LT', now + length, queue) end
  end
end
