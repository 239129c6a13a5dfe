-- Promote: scheduled jobs whose time has come become ready.
-- include again limit_timers
-- keys    scheduled
-- arg     limit      int   most jobs, at most 1000
-- route   desk
-- return  {promoted, now, next due time or 0, 1 where gates were opened}
local due = redis.call('ZRANGE', scheduled, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
if #due > 0 then redis.call('ZREM', scheduled, unpack(due)) end
local ticked = 0
for _, id in ipairs(due) do
  if id == '~' then
    limiting().run_timers(500)
    ticked = 1
  else
    line_up_again(id)
  end
end
return function() return {#due, now, redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or 0, ticked} end
