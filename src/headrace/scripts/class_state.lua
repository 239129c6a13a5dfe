-- Class state: how many jobs wait in a class, whose turn it is, and where it stands in its line.
-- Included, never run alone.
-- include lane_classes
-- lazy    limiting
-- keys    classes class lane
-- batch   classes_touched  {}  by class: {score of a job that came, if one did}
-- In a class, lanes that are behind a gate have their turn above this.
local PARKED = 2 ^ 50

-- How many jobs wait in its lanes, the turn from which these go on, and its pace: where it stands in its line, by the
-- time of its jobs.
local function read_class(c)
  if not c.turn then
    local said = redis.call('HMGET', classes .. c.queue, c.limits, c.limits .. '|')
    local turn, pace = string.match(said[2] or '', '^(%S+) (%S+)$')
    c.count, c.turn, c.pace = tonumber(said[1] or 0), tonumber(turn or 0), tonumber(pace)
  end
  return c
end

-- The lane whose turn it is.
local function first_lane(c)
  return redis.call('ZRANGEBYSCORE', class .. c.name, '-inf', '(' .. PARKED, 'LIMIT', 0, 1)[1]
end

-- Where it is to stand: as old as the job whose turn it is, or older where its jobs wait longer than those of its line.
-- So a new value that has its turn does not keep old jobs waiting behind all others of the queue.
local function class_score(c, first)
  local head = tonumber(redis.call('ZRANGE', lane .. first, 0, 0, 'WITHSCORES')[2] or now)
  return math.min(head, read_class(c).pace or head)
end

-- It is to stand where it belongs when the script ends; by a job with this score if there is one.
local function touch_class(c, score)
  local touched = batch.classes_touched
  local t = touched[c] or {}
  touched[c] = t
  if score then t.score = math.min(score, t.score or score) end
end

-- More or fewer jobs wait in it.
local function count_waiting(c, by)
  read_class(c)
  c.count = c.count + by
  touch_class(c)
end
