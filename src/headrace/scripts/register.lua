-- Register: a dispatcher incarnation begins its lease, before its first claim.
-- include lease
-- include declare
-- include telling
-- commit  batch
-- clock   now
-- key     self    hash    owner:<owner>
-- key     known   hash    tasks:<owner>
-- many    HSET
-- removes first self
-- arg     owner   text
-- arg     lease   int     microseconds
-- arg     facts   packed  {field, value, ...} that people see
-- arg     tasks   packed  {task, kind, ...} that it knows
-- arg     limits  packed  {{name, {field, value, ...}}, ...} that its code declares
-- arg     rows    packed  {task or queue, its limits, ...}, see limited_values
-- return  microseconds for which it is not known whether some of the others live: until then nothing of theirs is reclaimed
-- Before it is one of them: it would look as if somebody had been there.
local till = mend(lease)
local new = redis.call('ZADD', owners, now + lease, owner) == 1
redis.call('HSET', self, 'since', now, 'lease', lease, unpack(facts))
hset_all(known, tasks)
local said = {}
for n = 1, #facts, 2 do said[facts[n]] = facts[n + 1] end
if new then telling().happened('worker_started', {'worker', owner, 'place', said.place or '', 'queues', said.queues or ''}) end
local names = {}
for n, one in ipairs(limits) do names[n] = one[1] end
if #names > 0 then redis.call('HSET', self, 'declares', table.concat(names, ' ')) end
declare(limits, tasks, rows)
if redis.call('EXISTS', limited) == 1 then redis.call('HSET', self, 'limits', 1) end
return math.max(0, till - now)
