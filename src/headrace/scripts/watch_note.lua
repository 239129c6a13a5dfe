-- Watch note: the watcher that holds a hook or an alarm records how far it is; where that changes a field, an event
-- tells it.
-- include telling
-- clock   now
-- key     watches  zset    watches
-- key     watched  hash    watch:<watch>
-- removes first watches
-- arg     watch    text
-- arg     holder   text    names the watcher
-- arg     fields   packed  {field, value, ...} to store
-- arg     change   text    the field whose change is told; empty: none
-- arg     kind     text    of the event
-- arg     facts    packed  {field, value, ...} of the event
-- return  1; 0: another watcher holds it, and nothing is stored
local was = redis.call('HMGET', watched, 'holder', change)
if was[1] ~= holder then return 0 end
redis.call('HSET', watched, unpack(fields))
-- Repeated after a lost reply it changes nothing, and tells nothing.
if change ~= '' and redis.call('HGET', watched, change) ~= (was[2] or '0') then telling().happened(kind, facts) end
return 1
