-- Line: a job becomes ready, and somebody is woken for it. Included, never run alone.
-- Collects a batch: line_up(...) for each job, then line_up_all() once.
-- include wake
-- derive  ready   zset  ready:<queue>
local lines = {}

local function line_up(id, queue, score)
  local line = lines[queue]
  if not line then line = {} lines[queue] = line end
  -- Of an alien priority the score is no number, which would keep all that lines up with it out of the queue.
  line[#line + 1] = score == score and score or 0
  line[#line + 1] = id
end

local function line_up_all()
  for queue, line in pairs(lines) do
    for first = 1, #line, 1000 do
      redis.call('ZADD', ready .. queue, unpack(line, first, math.min(first + 999, #line)))
    end
    wake_up(queue)
  end
  lines = {}
end
