-- Logs: lines that a job logged.
-- keys    log:<id>
-- arg     limit  int   most lines, the last ones
-- route   of id
-- return  {line, ...}
return limit > 0 and redis.call('LRANGE', log, -limit, -1) or {} -- 0 to -1 would be all
