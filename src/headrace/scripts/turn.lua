-- Turn: of the ordered jobs with one key, known by their ids, only one is past its line; its end lets the next line up.
-- A job has the turn from the first time it lines up until it has ended, whatever comes between.
-- include ids line
-- lazy    turns await_turns may_line_up pass_on leave_chain
-- keys    sums=totals job turn chain
local ENDED = {succeeded = true, failed = true, cancelled = true, quarantined = true}

local function key_of(id)
  local key = redis.pcall('HGET', job .. id, 'key')
  return type(key) == 'string' and key
end

-- The job that waits longest has the turn now. What is in a chain without being a job that waits is forgotten.
local function pass(key)
  for _ = 1, 1000 do
    local id = redis.call('ZPOPMIN', chain .. key)[1]
    if not id then break end
    redis.call('HINCRBY', sums, 'blocked', -1)
    local f = redis.pcall('HMGET', job .. id, 'st', 'queue', 'priority')
    if f[1] == 'blocked' then
      redis.call('SET', turn .. key, id)
      redis.call('HSET', job .. id, 'st', 'ready')
      return line_up(id, f[2] or 'default', now - (tonumber(f[3]) or 0) * 600000000)
    end
  end
  redis.call('UNLINK', turn .. key)
end

-- Whether the job may line up. A key whose turn a lost record had goes on with the next job that waits for it.
local function has_turn(key, id)
  local holder = redis.call('GET', turn .. key)
  if holder and holder ~= id then
    local state = redis.pcall('HGET', job .. holder, 'st')
    if type(state) == 'string' and not ENDED[state] then return false end
    pass(key)
    holder = redis.call('GET', turn .. key)
  end
  if not holder then redis.call('SET', turn .. key, id) end
  return not holder or holder == id
end

-- Those of a line, {score, id, ...}, that must wait do, behind all others; the rest of it is returned.
local function await_turns(key, line)
  local first = has_turn(key, line[2]) and 3 or 1
  if first > #line then return line end
  -- Not merely by time: a clock that was set back must let no job overtake.
  local last = tonumber(redis.call('ZRANGE', chain .. key, -1, -1, 'WITHSCORES')[2] or 0)
  local score, rest = math.max(now, last + 1), {}
  for n = first, #line, 2 do
    redis.call('HSET', job .. line[n + 1], 'st', 'blocked')
    rest[n - first + 1], rest[n - first + 2] = score, line[n + 1]
    score = score + 1
  end
  zadd_all(chain .. key, rest)
  redis.call('HINCRBY', sums, 'blocked', #rest / 2)
  return first == 3 and {line[1], line[2]} or {}
end

-- Whether a job that comes back from elsewhere may line up; where it may not, it waits now.
local function may_line_up(id)
  local key = key_of(id)
  return not key or #await_turns(key, {0, id}) > 0
end

-- It has ended: if it had the turn, it passes that on.
local function pass_on(id)
  local key = key_of(id)
  if key and redis.call('GET', turn .. key) == id then pass(key) end
end

local function leave_chain(id)
  local key = key_of(id)
  if key and redis.call('ZREM', chain .. key, id) == 1 then redis.call('HINCRBY', sums, 'blocked', -1) end
end
