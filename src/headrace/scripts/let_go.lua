-- Let go: starts that left their owner's claims let go of their gates, and only these. Nothing is read of the jobs,
-- whose records may be gone: what a start holds is said beside the claims.
-- include held_gates
-- lazy    limiting let_go
-- keys    rewound gate
-- Where each value has few jobs, most starts have a gate to themselves, which is changed as text, without being made.
-- Those for which nothing waits let go. Returns the ids of the others, what they hold, and how many it looked at.
local function let_go_alone(ids, texts, unused)
  local find, sub = string.find, string.sub
  local left, held, some, keys, classes, size = {}, {}, {}, {}, {}, 0
  for n = 1, #ids do
    local text = texts[n]
    local c = text and not unused[ids[n]] and class_of(text)
    if c and c.lone then
      size = size + 1
      keys[size] = gate .. c.lead .. sub(text, c.size + 1, find(text, ' ', c.size, true) - 1)
      classes[size] = c
      some[size] = n
    elseif text and size == 0 then
      -- Those of one claim mostly hold the same.
      return ids, texts, 0
    elseif text then
      left[#left + 1] = ids[n]
      held[#held + 1] = text
    end
  end
  if size == 0 then return left, held, 0 end
  local gone, count, records = {}, 0, redis.call('MGET', unpack(keys))
  for n = 1, size do
    local record, limit = records[n], classes[n].lone
    local next_at, at, step, holders, flags
    if record then next_at, at, step, holders, flags = struct.unpack('<dddI4B', record) end
    if holders == 1 and flags == 0 and at <= now and step == (limit.step or 0) then
      local remembers = next_at + (limit.slack or 0) - now
      if remembers > 0 then
        redis.call('SET', keys[n], struct.pack('<dddI4B', next_at, at, step, 0, 0), 'PX',
          math.ceil(remembers / 1000) + 1000)
      else
        count = count + 1
        gone[count] = keys[n]
      end
    else
      left[#left + 1] = ids[some[n]]
      held[#held + 1] = texts[some[n]]
    end
  end
  unlink_all(gone)
  return left, held, size
end

-- Starts by what they hold, in lists: class, gates of its values, {cost, since}, how many, how many were none, whether
-- one was fine. Those of one claim mostly hold the same.
local function by_held(ids, texts, unused, poor)
  local at, charged, find, sub = {}, {}, string.find, string.sub
  local classes, own, told, counts, none, fine, size = {}, {}, {}, {}, {}, {}, 0
  local back = next(unused) and tonumber(redis.call('GET', rewound)) or 0
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
      local c = class_of(text)
      one = size + 1
      size = one
      at[text] = one
      classes[one] = c
      own[one] = value_gates(c, text, stop - 1)
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

-- texts: what these starts hold, or false; unused: tokens of those that were none, by id; poor: ids without success.
local function let_go(owner, ids, texts, unused, poor)
  local left, held, alone = let_go_alone(ids, texts, unused)
  local classes, own, told, counts, none, fine = by_held(left, held, unused, poor)
  if #own + alone == 0 then return end
  redis.call('HDEL', slots .. owner, unpack(ids))
  read_gates()
  for n = 1, #own do
    local shared, mine, cost, since = classes[n].gates, own[n], told[n][1], told[n][2]
    for m = 1, #shared do release_gate(shared[m], cost, counts[n], none[n], since, fine[n]) end
    for m = 1, #mine do release_gate(mine[m], cost, counts[n], none[n], since, fine[n]) end
  end
end
