-- Sweep: finished jobs leave whose retention is over, or that exceed the caps on count and bytes, soonest ends first.
-- keys    succeeded failed cancelled quarantined expires totals waited job log
-- arg     limit        int   most jobs, at most 1000
-- arg     most         int   jobs kept at most
-- arg     room         int   bytes kept at most
-- route   desk
-- return  {removed, now, next end of retention or 0}
redis.call('ZREMRANGEBYSCORE', waited, '-inf', now)
local finals = {succeeded = succeeded, failed = failed, cancelled = cancelled, quarantined = quarantined}
local count = redis.call('ZCARD', expires)
local bytes = tonumber(redis.call('HGET', totals, 'bytes') or 0)
local oldest = limit > 0 and redis.call('ZRANGE', expires, 0, limit - 1, 'WITHSCORES') or {} -- 0 to -1 would be all
local ids, gone, freed = {}, {}, 0
for n = 1, #oldest, 2 do
  local id, ends = oldest[n], tonumber(oldest[n + 1])
  if ends > now and count - #ids <= most and bytes - freed <= room then break end
  local state = redis.pcall('HGET', job .. id, 'st')
  if finals[state] then
    freed = freed + redis.call('HSTRLEN', job .. id, state == 'succeeded' and 'result' or 'error')
    redis.call('ZREM', finals[state], id)
  else -- a lost or unreadable record cannot say where it is indexed
    for _, index in pairs(finals) do redis.call('ZREM', index, id) end
  end
  ids[#ids + 1] = id
  gone[#gone + 1] = job .. id
  gone[#gone + 1] = log .. id
end
if #ids > 0 then
  redis.call('ZREM', expires, unpack(ids))
  unlink_all(gone)
  if bytes - freed <= 0 then redis.call('HDEL', totals, 'bytes')
  else redis.call('HINCRBY', totals, 'bytes', 0 - freed) end
end
return {#ids, now, redis.call('ZRANGE', expires, 0, 0, 'WITHSCORES')[2] or 0}
