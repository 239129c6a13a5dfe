-- Renew: an incarnation keeps everything that it holds, however much, for another lease, and hears what else is due.
-- include wake lease
-- keys    self=owner:<owner> claims:<owner> cancels:<owner> replaced:<owner>
-- keys    scheduled parking expires totals lapses chores resumes ticking paused ready of=claims
-- removes first claims
-- arg     lease      int     microseconds
-- arg     metadata   packed  {field, value, ...} that changed
-- arg     names      packed  queues that it serves
-- arg     ticks      int     1: it does not know when the next tick is due
-- route   desk
-- return  {ok, now, next due or 0, nearest end of a lease, its owner, {cancelled ids}, {parked tasks}, next retention
--         end or 0, kept bytes, kept, next workflow's retention end or 0, when the next chore is due or 0, next end of
--         a pause or 0, jobs that it holds, next tick of a schedule or 0, -1 where that was not asked for, {its queues
--         that are paused}, how many others have ready jobs, {what of its code is to be declared anew}} | {gone}
-- An idle worker says nothing else, so each command here is paid for ever: what may be absent is asked for in one.
local first = redis.call('ZRANGE', owners, 0, 1, 'WITHSCORES')
local ends = tonumber(first[1] == owner and first[2] or redis.call('ZSCORE', owners, owner) or 0)
-- Late, or of another time: so may be the others. One that is over may be shorter, with an outage for it alone.
local over = tonumber(first[2] or now) < now and tonumber(redis.pcall('HGET', about .. first[1], 'lease'))
if ends > 0 and (ends < now + lease / 2 or ends > now + lease or over) then
  leases().repair(math.min(lease, over or lease))
  if ends > now + lease then leases().rewind() end
  first, ends = redis.call('ZRANGE', owners, 0, 1, 'WITHSCORES'), tonumber(redis.call('ZSCORE', owners, owner))
end
if ends <= now then return {'gone'} end
local nearest = first[1] == owner and {first[3] or owner, first[4] or now + lease} or first
-- A name without an owner would hide all those whose leases end later.
if tonumber(nearest[2]) <= now and redis.call('EXISTS', about .. nearest[1], of .. nearest[1]) == 0 then
  redis.call('ZREM', owners, nearest[1])
end
redis.call('ZADD', owners, now + lease, owner)
if #metadata > 0 then redis.call('HSET', self, unpack(metadata)) end
local places = {claims, cancels, scheduled, parking, expires, lapses, chores, resumes, paused}
for n, queue in ipairs(names) do places[9 + n] = ready .. queue end
places[#places + 1] = replaced
if ticks == 1 then places[#places + 1] = ticking end
local left = redis.call('EXISTS', unpack(places))
if left == 0 then return {'ok', now, 0, nearest[2], nearest[1], {}, {}, 0, 0, 0, 0, 0, 0, 0, ticks - 1, {}, 0, {}} end
-- The likeliest first: once all that exist are found, no other is asked for.
local function soonest(index)
  local due = left > 0 and redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  if due then left = left - 1 end
  return due or 0
end
local function some_of(set)
  local found = left > 0 and redis.call('SRANDMEMBER', set, 500) or {}
  if found[1] then left = left - 1 end
  return found
end
local tick, kept_till, due, held = ticks == 1 and soonest(ticking) or -1, soonest(expires), soonest(scheduled), 0
if left > 0 then
  held = redis.call('ZCARD', claims)
  left = left - (held > 0 and 1 or 0)
end
local bytes, kept = 0, 0
if kept_till ~= 0 then
  bytes, kept = tonumber(redis.call('HGET', totals, 'bytes') or 0), redis.call('ZCARD', expires)
end
-- A wake-up token may have died with the dispatcher that took it.
local waiting = {}
for _, queue in ipairs(names) do
  if left > 0 and redis.call('EXISTS', ready .. queue) == 1 then
    wake_up(queue)
    waiting[queue], left = true, left - 1
  end
end
local flow_ends, chore, pause_ends, cancelled, parked = soonest(lapses), soonest(chores), soonest(resumes),
  some_of(cancels), some_of(parking)
local stopped, some = {}, 0
local is_paused = left > 0 and #names > 0 and redis.call('SMISMEMBER', paused, unpack(names)) or {}
for n, queue in ipairs(names) do
  if is_paused[n] == 1 then stopped[#stopped + 1] = queue
  elseif waiting[queue] and queue ~= '_own' then some = some + 1 end
end
return {'ok', now, due, nearest[2], nearest[1], cancelled, parked, kept_till, bytes, kept, flow_ends, chore, pause_ends,
  held, tick, stopped, some, some_of(replaced)}
