-- Renew: an incarnation keeps everything that it holds, however much, for another lease, and hears what else is due.
-- include wake
-- include lease
-- clock   now
-- key     self       hash    owner:<owner>
-- key     claims     zset    claims:<owner>
-- key     cancels    set     cancels:<owner>
-- key     scheduled  zset    scheduled
-- key     timers     zset    timers
-- key     parking    set     parking
-- key     expires    zset    expires
-- key     totals     hash    totals
-- key     lapses     zset    lapses
-- key     chores     zset    chores
-- key     resumes    zset    resumes
-- key     ticking    zset    ticking
-- key     paused     set     paused
-- derive  ready      zset    ready:<queue>
-- removes first claims
-- derive  of         zset    claims:<owner>
-- arg     owner      text
-- arg     lease      int     microseconds
-- arg     facts      packed  {field, value, ...} that changed
-- arg     names      packed  queues that it serves
-- return  {ok, now, next due or 0, nearest end of a lease, its owner, {cancelled ids}, {parked tasks}, next retention end or 0, kept bytes, kept,
--         next workflow's retention end or 0, when the next chore is due or 0, next end of a pause or 0, jobs that it holds, next tick of a schedule or 0, {its queues that are paused}, how many others have ready jobs} | {gone}
-- An idle worker says nothing else, so each command here is paid for ever: what may be absent is asked for in one.
local first = redis.call('ZRANGE', owners, 0, 1, 'WITHSCORES')
local ends = tonumber(first[1] == owner and first[2] or redis.call('ZSCORE', owners, owner) or 0)
-- Late, or of another time: so may be the others. Another one's lease that is over may be shorter, and an outage for it alone.
local over = tonumber(first[2] or now) < now and tonumber(redis.call('HGET', about .. first[1], 'lease'))
if ends > 0 and (ends < now + HALF * lease or ends > now + lease or over) then
  mend(math.min(lease, over or lease))
  if ends > now + lease and redis.call('EXISTS', timers) == 1 then
    -- The clock was set back: gates may open before the times that were told of them.
    redis.call('ZADD', timers, now, 'clock:0')
    redis.call('ZADD', scheduled, now, '~')
  end
  first, ends = redis.call('ZRANGE', owners, 0, 1, 'WITHSCORES'), tonumber(redis.call('ZSCORE', owners, owner))
end
if ends <= now then return {'gone'} end
local nearest = first[1] == owner and {first[3] or owner, first[4] or now + lease} or first
-- A name that belongs to nobody would hide all those whose leases end later.
if tonumber(nearest[2]) <= now and redis.call('EXISTS', about .. nearest[1], of .. nearest[1]) == 0 then redis.call('ZREM', owners, nearest[1]) end
redis.call('ZADD', owners, now + lease, owner)
if #facts > 0 then redis.call('HSET', self, unpack(facts)) end
local held = redis.call('ZCARD', claims)
local places = {cancels, scheduled, parking, expires, lapses, chores, resumes, ticking, paused}
for n, queue in ipairs(names) do places[9 + n] = ready .. queue end
if redis.call('EXISTS', unpack(places)) == 0 then return {'ok', now, 0, nearest[2], nearest[1], {}, {}, 0, 0, 0, 0, 0, 0, held, 0, {}, 0} end
-- A wake-up token may have died with the dispatcher that took it.
local waiting = {}
for _, queue in ipairs(names) do
  if redis.call('EXISTS', ready .. queue) == 1 then
    wake_up(queue)
    waiting[queue] = true
  end
end
local stopped, some = {}, 0
for n, is in ipairs(#names > 0 and redis.call('SMISMEMBER', paused, unpack(names)) or {}) do
  if is == 1 then stopped[#stopped + 1] = names[n] elseif waiting[names[n]] then some = some + 1 end
end
local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0
local kept_till = redis.call('ZRANGE', expires, 0, 0, 'WITHSCORES')[2] or 0
return {'ok', now, due, nearest[2], nearest[1], redis.call('SRANDMEMBER', cancels, 500), redis.call('SRANDMEMBER', parking, 500),
  kept_till, tonumber(redis.call('HGET', totals, 'bytes') or 0), redis.call('ZCARD', expires),
  redis.call('ZRANGE', lapses, 0, 0, 'WITHSCORES')[2] or 0, redis.call('ZRANGE', chores, 0, 0, 'WITHSCORES')[2] or 0,
  redis.call('ZRANGE', resumes, 0, 0, 'WITHSCORES')[2] or 0, held, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0, stopped, some}
