-- Let go: starts that left their owner's claims let go of their gates, and only these. Included, never run alone.
-- Nothing is read of the jobs, whose records may be gone: what a start holds is said beside the claims.
-- include lone_gates
-- lazy    limiting let_go hold_again hold_off spend_held
-- clock   now
-- key     limited  hash  limited
-- derive  newest   string  token
-- derive  owners_at  zset  owners
-- derive  slots    hash  slots:<owner>
-- channel mail     mail:<owner>
-- What a start holds: its lane, what it cost, and when that was charged.
local function held_by(text)
  local name, cost, since = string.match(text, '^(%S+) (%d+) (%d+)$')
  return name, tonumber(cost), tonumber(since)
end

-- The gates that the jobs of a lane pass.
local function passed_by(name)
  local c = lanes().class_of(name)
  local own = lanes().gates(c, name)
  gates().load()
  return {c.gates, own}
end

-- Starts by what they hold, in lists: class, gates of its values, {cost, since}, how many, how many were none, whether one was fine. Those of one claim mostly
-- hold the same.
local function by_held(ids, texts, unused, poor)
  local all, at, charged, find, sub = lanes(), {}, {}, string.find, string.sub
  local classes, own, told, counts, none, fine, size = {}, {}, {}, {}, {}, {}, 0
  local back = next(unused) and tonumber(redis.call('HGET', limited, 'back')) or 0
  for n = 1, #ids do
    local text, id = texts[n], ids[n]
    local one = text and at[text]
    if text and not one then
      local stop = find(text, ' ', 1, true)
      local rest = sub(text, stop)
      local said = charged[rest]
      if not said then
        local _, cost, since = held_by(text)
        said = {cost, since}
        charged[rest] = said
      end
      local c = all.class_of(text)
      one = size + 1
      size = one
      at[text] = one
      classes[one] = c
      own[one] = all.gates(c, text, stop - 1)
      told[one] = said
      counts[one] = 0
      none[one] = 0
      fine[one] = false
    end
    if one then
      counts[one] = counts[one] + 1
      if unused[id] and unused[id] > back then none[one] = none[one] + 1 end
      if not (fine[one] or poor[id]) then fine[one] = true end
    end
  end
  return classes, own, told, counts, none, fine
end

-- texts: what these starts hold, false for nothing; unused: tokens of those that were none, by id; poor: ids of those that did not succeed.
local function let_go(owner, ids, texts, unused, poor)
  local g, left, held, alone = gates(), let_go_alone(ids, texts, unused)
  local classes, own, told, counts, none, fine = by_held(left, held, unused, poor)
  if #own + alone == 0 then return end
  redis.call('HDEL', slots .. owner, unpack(ids))
  g.load()
  local release = g.release
  for n = 1, #own do
    local shared, mine, cost, since = classes[n].gates, own[n], told[n][1], told[n][2]
    for m = 1, #shared do release(shared[m], cost, counts[n], none[n], since, fine[n]) end
    for m = 1, #mine do release(mine[m], cost, counts[n], none[n], since, fine[n]) end
  end
end

-- A start goes on whose claim the store had forgotten: it holds its gates, also where that is more than they let in.
local function hold_again(owner, id)
  local f = redis.call('HMGET', job .. id, 'task', 'queue', 'args', 'key', 'cost')
  local rule = f[1] and limits_of(f[1], f[2] or 'default')
  if not rule then return end
  local name = lane_of(f[2] or 'default', rule, f[3] or '', f[4])
  local cost, passes = cost_of(f[5]), passed_by(name)
  redis.call('HSET', slots .. owner, id, string.format('%s %.0f %.0f', name, cost, now))
  for _, list in ipairs(passes) do gates().charge_all(list, cost) end
end

-- Live workers that hold limited jobs hear of a gate that was closed, and of the last token before: what they have claimed of it and not begun comes back.
-- At most so many hear of it.
local TOLD = 100
local function tell_closed(name)
  local word = 'closed:' .. (redis.call('GET', newest) or 0) .. ':' .. name
  for _, other in ipairs(redis.call('ZRANGE', owners_at, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, TOLD)) do
    if redis.call('EXISTS', slots .. other) == 1 then redis.call('PUBLISH', mail .. other, word) end
  end
end

-- The gate of a limit that a job passed was closed by the other side, for so long (microseconds; 0: as is usual). False: it passed none of this limit.
local function hold_off(id, limit, delay)
  local name, found = redis.pcall('HGET', job .. id, 'lane'), false
  for _, list in ipairs(type(name) == 'string' and passed_by(name) or {}) do
    for _, g in ipairs(list) do
      if string.match(g.name, '^[^:]*') == limit then
        if gates().hold_off(g, delay) then tell_closed(g.name) end
        found = true
      end
    end
  end
  return found
end

-- A start that runs costs more than was said, or, below 0, less: {{limit, units}, ...}.
local function spend_held(owner, id, spent)
  local name, _, since = held_by(redis.call('HGET', slots .. owner, id) or '')
  for _, list in ipairs(name and passed_by(name) or {}) do
    for _, g in ipairs(list) do
      for _, one in ipairs(spent) do
        if string.match(g.name, '^[^:]*') == one[1] then gates().spend(g, one[2], since) end
      end
    end
  end
end
