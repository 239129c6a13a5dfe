-- Errand stop: no further piece of an errand is done; what is done stays done.
-- clock   now
-- key     chores  zset  chores
-- key     self    hash  errand:<id>
-- removes first chores
-- arg     id      text
-- return  stopped | missing | ended: it was done already
redis.call('ZREM', chores, 'errand:' .. id)
local phase = redis.call('HGET', self, 'phase')
if not phase then return 'missing' end
if phase == 'running' then redis.call('HSET', self, 'phase', 'stopped', 'ended', now) end
return phase == 'ended' and 'ended' or 'stopped'
