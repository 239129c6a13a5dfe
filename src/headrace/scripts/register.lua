-- Register: a dispatcher incarnation begins its lease, before its first claim.
-- include lease telling
-- keys    self=owner:<owner> known=tasks:<owner> schema move copy deploys moving=migration last=token
-- removes first self
-- arg     lease   int     microseconds
-- arg     version int     what this client writes
-- arg     oldest  int     the oldest that it can work on
-- arg     count   int     of shards
-- arg     metadata packed  {field, value, ...} that people see
-- arg     tasks   packed  {task, kind, ...} that it knows
-- route   desk
-- return  microseconds until it is known whether some of the others live: before that nothing of theirs is reclaimed
-- Versions of code that are known, and seconds for which they are.
local MOST_DEPLOYS, YEAR = 20, 31622400
-- The worker looked at it when it started, and may have been suspended for a whole migration since.
local found = tonumber(redis.call('GET', schema) or version) or 0
if found > version or found < oldest or redis.call('EXISTS', moving) == 1 then
  return redis.error_reply(
    'SCHEMA the store was migrated, or is being migrated, since this worker started: it has schema ' .. found
      .. ', the worker ' .. version .. '. Finish the migration, or stop this worker')
end
if redis.call('EXISTS', move) == 1 then
  return redis.error_reply('SCHEMA the store is being moved to another server, or has moved: ask headrace migrate')
end
local lost = redis.call('HGET', copy, 'lost')
if lost then
  return redis.error_reply(string.format(
    'RESTORED the store was put back to what it was %.0f s before: no worker claims until you decide what becomes of '
      .. 'jobs that have run since. Write headrace restored --live park, or --live run', lost / 1e6))
end
-- Before it is one of them: it would look as if a worker had been there.
local till = leases().repair(lease)
-- A job has started a second from now: then the clock was ahead, and no worker may have lived when it was set back.
if tonumber(redis.call('GET', last) or 0) > now + 1000000 then leases().rewind() end
local new = redis.call('ZADD', owners, now + lease, owner) == 1
redis.call('HSET', self, 'since', now, 'lease', lease, unpack(metadata))
hset_all(known, tasks)
-- A store that has lost everything has lost this too, and programs that are connected do not greet it again.
-- Of several shards it has lost its number too, which a program that greets it writes.
if count == 1 then redis.call('SET', schema, version, 'NX') end
local said = {}
for n = 1, #metadata, 2 do said[metadata[n]] = metadata[n + 1] end
if new then
  telling().at_home('worker_started', {'worker', owner, 'place', said.place or '', 'queues', said.queues or ''})
end
if said.code then
  redis.call('ZADD', deploys, 'NX', now, said.code)
  redis.call('ZREMRANGEBYRANK', deploys, 0, -1 - MOST_DEPLOYS)
  redis.call('EXPIRE', deploys, YEAR)
end
return math.max(0, till - now)
