-- Held gates: a start that runs closes its gate, spends more of its rate, or holds it again after an outage.
-- include lanes gate_opening limited_values
-- lazy    limiting hold_again hold_off spend_held close_gate
-- keys    newest=token owners_at=owners slots job mail
-- What a start holds: its lane, what it cost, and when that was charged.
local function held_by(text)
  local name, cost, since = string.match(text, '^(%S+) (%d+) (%d+)$')
  return name, tonumber(cost), tonumber(since)
end

-- A start goes on whose claim the store had forgotten: it holds its gates, also where that is more than they let in.
local function hold_again(owner, id)
  local f = redis.call('HMGET', job .. id, 'task', 'queue', 'args', 'key', 'cost')
  local rule = f[1] and limits_of(f[1], f[2] or 'default')
  if not rule then return end
  local name = lane_of(f[2] or 'default', rule, f[3] or '', f[4])
  local cost, passes = cost_of(f[5]), passed_by(name)
  redis.call('HSET', slots .. owner, id, string.format('%s %.0f %.0f', name, cost, now))
  for _, list in ipairs(passes) do charge_all(list, cost) end
end

-- Live workers that hold limited jobs hear of a gate that was closed, and of the last token before: what they have
-- claimed of it and not begun comes back. At most this many hear of it.
local TOLD = 100
local function close_gate(g, delay)
  if not close_refused(g, delay) then return end
  local word = 'closed:' .. (redis.call('GET', newest) or 0) .. ':' .. g.name
  for _, other in ipairs(redis.call('ZRANGE', owners_at, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, TOLD)) do
    if redis.call('EXISTS', slots .. other) == 1 then redis.call('PUBLISH', mail .. other, word) end
  end
end

-- The other side closed the gate of a limit, for microseconds (0: as is usual). False: the job passed none of it.
local function hold_off(id, limit, delay)
  local name, found = redis.pcall('HGET', job .. id, 'lane'), false
  for _, list in ipairs(type(name) == 'string' and passed_by(name) or {}) do
    for _, g in ipairs(list) do
      if string.match(g.name, '^[^:]*') == limit then
        close_gate(g, delay)
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
        if string.match(g.name, '^[^:]*') == one[1] then spend_more(g, one[2], since) end
      end
    end
  end
end
