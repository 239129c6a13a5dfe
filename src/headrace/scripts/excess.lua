-- Excess: where jobs come while a limit with full= is full, some end as cancelled. Included, never run alone.
-- One that waits goes on with the time of its end at 1, in the line of its queue: a worker claims it, passes no gate,
-- and settles it as cancelled.
-- include lane_classes
-- lazy    limiting
-- keys    owners_at=owners job lane slots_at=slots claims_at=claims cancels_at=cancels
-- channel mail     mail:<owner>
local LEFT_OUT = '1'

-- Whether the jobs of a lane pass a gate.
local function passes(name, g)
  local c = class_of(name)
  for _, list in ipairs({c.gates, value_gates(c, name)}) do
    for _, one in ipairs(list) do
      if one == g then return true end
    end
  end
  return false
end

-- The oldest of those that hold a gate, as many as must stop, are asked to.
local function stop_oldest(g, wanted)
  local held = {}
  for _, owner in ipairs(redis.call('ZRANGE', owners_at, 0, -1)) do
    local all, mine = redis.call('HGETALL', slots_at .. owner), {}
    for n = 1, #all, 2 do
      if passes(string.match(all[n + 1], '^%S+'), g) then mine[#mine + 1] = all[n] end
    end
    for first = 1, #mine, 1000 do
      local some = {unpack(mine, first, math.min(first + 999, #mine))}
      for n, token in ipairs(redis.call('ZMSCORE', claims_at .. owner, unpack(some))) do
        if token then held[#held + 1] = {tonumber(token), some[n], owner} end
      end
    end
  end
  table.sort(held, function(a, b) return a[1] < b[1] end)
  for n = 1, math.min(wanted, #held) do
    local id, owner = held[n][2], held[n][3]
    if redis.call('SADD', cancels_at .. owner, id) == 1 then
      redis.call('HSET', job .. id, 'cancel', 1)
      redis.call('PUBLISH', mail .. owner, id)
    end
  end
end

-- The first of the gates of a lane that says what to do when it is full, and has a number at once.
local function strict(list)
  for _, g in ipairs(list) do
    if g.limit.full and g.limit.most then return g end
  end
end

-- Which jobs of a lane are left out, of {score, id, ...} that came.
local function excess(name, rows)
  local shared, own = unpack(passed_by(name))
  local g = strict(own) or strict(shared)
  if not g then return {} end
  local waits, free, full, out = redis.call('ZCARD', lane .. name), math.max(0, g.limit.most - g.held), g.limit.full, {}
  if full == 'cancel_new' then
    for n = #rows, math.max(2, #rows - 2 * (waits - free) + 2), -2 do out[#out + 1] = rows[n] end
    return out
  end
  local stays = free + 1
  if full == 'cancel_running' then
    stays = g.limit.most
    local stop = math.min(waits, stays) - free
    if stop > 0 then stop_oldest(g, stop) end
  end
  return waits > stays and redis.call('ZRANGE', lane .. name, 0, waits - stays - 1) or out
end
