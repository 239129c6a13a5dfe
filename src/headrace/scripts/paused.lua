-- Paused: which queues are.
-- keys    paused
-- route   all
-- return  their names
return redis.call('SMEMBERS', paused)
