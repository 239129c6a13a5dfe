-- Knowers: live workers that know a task and serve its queue hear that jobs of it are parked.
-- Included, never run alone.
-- keys    owners about=owner known=tasks
-- channel mail    mail:<owner>
-- batch   heard   {}    tasks and queues that workers have heard of
-- Each hears once of a task and queue, however many jobs of it a batch parks. Few are told, and not many looked at: the
-- others hear of it with their next renewals.
local LOOKED_AT, TOLD = 100, 8
local function tell_knowers(task, queue)
  local what, heard = task .. ' ' .. queue, 0
  if batch.heard[what] then return end
  batch.heard[what] = true
  for _, other in ipairs(redis.call('ZRANGE', owners, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, LOOKED_AT)) do
    if heard < TOLD and redis.call('HEXISTS', known .. other, task) == 1 then
      local served = redis.call('HGET', about .. other, 'queues') or ''
      if queue == '_own' or string.find(',' .. served .. ',', ',' .. queue .. ',', 1, true) then
        heard = heard + redis.call('PUBLISH', mail .. other, 'parked:' .. task)
      end
    end
  end
end
