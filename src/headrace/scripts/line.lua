-- Line: a job becomes ready, and a sleeping dispatcher is woken for it.
-- include lane_entry
-- batch   lines   {}    by queue: {score, id, ...} of the jobs that line up
-- batch   limits  nil   whether any limit is known, where the script has asked
-- step    line_up_all
local function line_up(id, queue, score)
  local line = batch.lines[queue]
  if not line then line = {} batch.lines[queue] = line end
  -- Of an unreadable priority the score is not a number, which would keep all that lines up with it out of the queue.
  line[#line + 1] = score == score and score or 0
  line[#line + 1] = id
end

local function line_up_all()
  local limits = batch.limits
  if limits == nil then limits = next(batch.lines) and redis.call('EXISTS', limited) == 1 end
  for queue, line in pairs(batch.lines) do
    -- A broadcast is not limited.
    if limits and string.byte(queue) ~= 64 then line = limiting().sort_line(queue, line) end
    if #line > 0 then
      zadd_all(ready .. queue, line)
      wake_up(queue)
    end
  end
  batch.lines = {}
end
