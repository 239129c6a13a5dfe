-- Paused: which queues are.
-- key     paused  set   paused
-- return  their names
return redis.call('SMEMBERS', paused)
