-- Reclaim: what a dead incarnation ran goes back to its queues, each start counted as a crash.
-- include finish line journal lease let_go worker_gone
-- removes first owners
-- keys    victim=owner:<owner> tasks:<owner> claims:<owner> cancels:<owner> replaced:<owner>
-- arg     owner     text  the incarnation that is believed dead
-- arg     known     int   1: its own supervisor saw it die; 0: only when its lease is over
-- arg     limit     int   most jobs, at most 500
-- arg     ttl       int   microseconds that a job stays whose budget is used up
-- route   desk
-- return  {alive | some | done, jobs moved}
if known == 0 and leases().lease_end(owner) then return {'alive', 0} end
-- A key of another type is none that it wrote. Each worker that takes over would fail at it, again and again.
local types = {[victim] = 'hash', [claims] = 'zset', [cancels] = 'set', [slots .. owner] = 'hash',
  [ready .. '@' .. owner] = 'zset'}
for key, type in pairs(types) do
  if redis.call('TYPE', key).ok ~= type then redis.call('UNLINK', key) end
end
local ends = redis.call('ZSCORE', owners, owner)
local held = limit > 0 and redis.call('ZRANGE', claims, 0, limit - 1) or {} -- 0 to -1 would be all
if #held > 0 then redis.call('SREM', cancels, unpack(held)) end
if ends and tonumber(ends) > 0 then redis.call('ZADD', owners, 0, owner) end
local place = redis.call('HGET', victim, 'place') or owner
local why = (known == 1 and 'the dispatcher of its worker died' or 'its worker ended or lost its lease')
  .. ' while it held the job'
local evidence = '{"type":"Crashed","message":"' .. why .. '","worker":' .. cjson.encode(place) .. '}'
local tokens = #held > 0 and redis.call('ZMSCORE', claims, unpack(held)) or {}
for n, id in ipairs(held) do
  -- When it became ready only the dead one knew.
  pcall(note_start, id, 0, tonumber(tokens[n]), place, 'crashed', 'Crashed: ' .. why, 0, -1)
  -- Scripts do not roll back: an unreadable record must not leave its mates both claimed and ready.
  if redis.call('EXISTS', job .. id) == 0 then
    -- Its workflow, if it has one, waits for its end anyway.
    pcall(finish, id, 'cancelled', '{"type":"Lost","message":"its record is gone"}', 0)
  elseif not pcall(crash, id, evidence, 0, ttl, victim) then
    pcall(finish, id, 'quarantined', '{"type":"Corrupt","message":"its record cannot be read"}', ttl)
  end
end
if #held > 0 then
  redis.call('ZREM', claims, unpack(held))
  local poor = {}
  for _, id in ipairs(held) do poor[id] = true end
  limiting().let_go(owner, held, redis.call('HMGET', slots .. owner, unpack(held)), {}, poor)
end
leave_behind(owner, limit - #held, ttl)
return function()
  if redis.call('EXISTS', claims, ready .. '@' .. owner) > 0 then return {'some', #held} end
  if redis.call('ZREM', owners, owner) == 1 then
    worker_lost(owner, place, known == 1 and 'its process died' or 'its lease ended')
  end
  redis.call('UNLINK', victim, tasks, cancels, replaced, slots .. owner)
  return {'done', #held}
end
