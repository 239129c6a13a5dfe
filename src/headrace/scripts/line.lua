-- Line: a job becomes ready, and somebody is woken for it. Included, never run alone.
-- Collects a batch: line_up(...) for each job, then line_up_all() once.
-- key     queues  set   queues         names of queues that held work
-- derive  ready   zset  ready:<queue>
-- derive  wake    list  wake:<queue>
local lines = {}

local function line_up(id, queue, score)
  local line = lines[queue]
  if not line then line = {} lines[queue] = line end
  line[#line + 1] = score
  line[#line + 1] = id
end

-- One token a queue: it wakes one idle dispatcher, which passes it on when it leaves work behind.
local function wake_up(queue)
  if redis.call('EXISTS', wake .. queue) == 0 then
    redis.call('RPUSH', wake .. queue, 1)
    redis.call('SADD', queues, queue)
  end
end

local function line_up_all()
  for queue, line in pairs(lines) do
    for first = 1, #line, 1000 do
      redis.call('ZADD', ready .. queue, unpack(line, first, math.min(first + 999, #line)))
    end
    wake_up(queue)
  end
end
