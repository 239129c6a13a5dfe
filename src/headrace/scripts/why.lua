-- Why: what a job waits for: its place in its queue, and the live workers that may run it. Changes nothing.
-- clock   now
-- key     scheduled  zset  scheduled
-- key     paused     set   paused
-- key     resumes    zset  resumes
-- key     owners     zset  owners
-- derive  job        hash  job:<id>
-- derive  ready      zset  ready:<queue>
-- derive  facts      hash  owner:<owner>
-- derive  known      hash  tasks:<owner>
-- derive  claims     zset  claims:<owner>
-- arg     id         text
-- arg     limit      int   most workers that are looked at
-- return  {now, state or empty, queue, task, place it runs on, token or 0, due time or 0, jobs ahead of it, 1 when its queue is paused, end of the pause or 0,
--         live workers, {{place, queues, kind of the task or empty, sizes, crew, jobs that it holds}, ...}}
local f = redis.pcall('HMGET', job .. id, 'state', 'queue', 'task', 'owner', 'token')
if f.err or not f[1] then return {now, '', '', '', '', 0, 0, 0, 0, 0, 0, {}} end
local queue, task = f[2] or 'default', f[3] or ''
local where = f[4] and redis.call('HGET', facts .. f[4], 'place') or ''
local live, workers = redis.call('ZCOUNT', owners, '(' .. now, '+inf'), {}
for n, owner in ipairs(redis.call('ZRANGE', owners, '+inf', '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, limit)) do
  local said = redis.call('HMGET', facts .. owner, 'place', 'queues', 'sizes', 'crew')
  workers[n] = {said[1] or owner, said[2] or '', redis.call('HGET', known .. owner, task) or '', said[3] or '', said[4] or '',
    redis.call('ZCARD', claims .. owner)}
end
return {now, f[1], queue, task, where, f[5] or 0, redis.call('ZSCORE', scheduled, id) or 0, redis.call('ZRANK', ready .. queue, id) or 0,
  redis.call('SISMEMBER', paused, queue), redis.call('ZSCORE', resumes, queue) or 0, live, workers}
