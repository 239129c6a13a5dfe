-- Logs: lines that a job logged.
-- key     log    list  log:<id>
-- arg     id     text
-- arg     limit  int   most lines, the last ones
-- return  {line, ...}
return redis.call('LRANGE', log, -limit, -1)
