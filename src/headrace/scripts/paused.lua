-- Paused: which queues are.
-- key     paused  set   paused
-- route   all
-- return  their names
return redis.call('SMEMBERS', paused)
