-- Lane turn: jobs of one lane start until the turn of another one comes, or a gate closes.
-- include lanes
-- lazy    limiting
-- keys    gate
-- batch   holding  {}  {id, what it holds, ...} of the limited jobs that this claim leases
-- A turn of a lane of weight 1 moves it this far.
local TURN = 1000
-- Lanes that one claim looks at in vain.
local REFUSALS = 64

-- The turn after a start. Turns of a lane are on a grid of its own, which its name says, and the first start leads
-- there: by half a turn to one and a half, one on average. Else lanes that came together would go in step, the heavy
-- ones ahead by up to a turn of the light ones. A lane that is alone needs none.
local function turn_after(s, row, cost)
  local weight = 1
  for _, one in ipairs(row.own) do weight = weight * (one.limit.weight or 1) end
  local stride = TURN / weight
  if s.alone then return row.turn + cost * stride end
  local share = s.shares[row.name]
  if not share then
    share = tonumber(string.sub(redis.sha1hex(row.name), 1, 6), 16) / 2 ^ 24
    s.shares[row.name] = share
  end
  return (math.floor(row.turn / stride - share + 0.5) + share + cost) * stride
end

-- The first job of a lane, and its score; nil: it is empty. Jobs are taken out ahead: one command takes several.
local function head(row, most)
  local jobs = row.jobs
  if not jobs or row.full and row.at > #jobs then
    jobs = redis.call('ZPOPMIN', lane .. row.name, most)
    row.jobs, row.at, row.full = jobs, 1, #jobs == 2 * most
  end
  return jobs[row.at], jobs[row.at + 1]
end

-- As if all that wait had come one after the other: so neither they nor other jobs of the queue stay behind for long.
local function keep_pace(s, next_at)
  local c = s.c
  if s.alone and next_at then
    c.pace = tonumber(next_at)
  elseif c.pace < now then
    c.pace = now - (now - c.pace) * math.max(0, s.waited - s.took) / math.max(1, s.waited - s.paced)
  end
  s.paced, s.score = s.took, c.pace
end

-- Whether this claim may start more of the class.
local function goes_on(s)
  return s.took < s.room and s.score <= s.bound and s.refused < REFUSALS and not s.shut and not s.ways.full
end

-- A start holds its gates: its lane, cost, and the time at which these were charged are told of it.
local function hold(s, row, id, cost)
  local held, text = batch.holding, row.text
  if cost ~= 1 then
    text = row.name .. string.format(' %d %d', cost, now)
  elseif not text then
    text = row.name .. s.charged
    row.text = text
  end
  local n = #held
  held[n + 1] = id
  held[n + 2] = text
  if row.own == s.fresh then
    if cost == 1 and row.at > #row.jobs then
      -- Its only job, since two were taken out if there are: the gate of its value is stored without being made.
      local begun = s.begun
      n = #begun
      begun[n + 1] = row.key
      begun[n + 2] = s.first
      return
    end
    row.own = {gate_of_text(string.sub(row.key, #gate + 1), s.c.word, false)}
  end
  if s.c.gates[1] then charge_all(s.c.gates, cost) end
  if row.own[1] then charge_all(row.own, cost) end
end

-- Jobs of one lane start until the turn of another one comes, or a gate closes. Says whether the lane may have another
-- turn in this round. s: the state of the claim's rounds, see serve.
local function lane_turn(s, row, other)
  local c, free, id, at = s.c, 0, nil, nil
  repeat
    if free == 0 then
      free = free_starts(row.own)
      if free == 0 then break end
      if c.gates[1] then
        local shared = free_starts(c.gates)
        s.shut = shared == 0
        if s.shut then return true end
        if shared < free then free = shared end
      end
    end
    -- One job more than may start leaves the lane: the class needs the time of the next one. It goes back.
    if not id then id, at = head(row, math.min(free + 1, s.most)) end
    local word, cost = 'empty', 1
    if id then word, cost = s.take(s.queue, id, at, c, row.own, s.ways) end
    if word == 'later' then
      s.refused, s.stop = s.refused + 1, true
      return false
    elseif word == 'dear' then
      -- A gate has closed until what it costs fits.
      free = 0
    else
      if row.turn > c.turn then c.turn = row.turn end
      if id then row.at, s.took = row.at + 2, s.took + 1 end
      if word == 'taken' then
        hold(s, row, id, cost)
        free = cost == 1 and free - 1 or 0
      end
      id, at = head(row, math.min(free + 1, s.most))
      if s.bound < math.huge then keep_pace(s, at) end
      if not id then
        row.state = 'empty'
        return false
      end
      if word == 'taken' then row.turn = turn_after(s, row, cost) end
    end
  until not goes_on(s) or row.turn >= other
  s.next_at = at
  if free > 0 then return true end
  s.shut = first_closed(c.gates)
  local shut = first_closed(row.own)
  if not shut then return true end
  -- In vain: no job of it was looked at.
  if not id then s.refused = s.refused + 1 end
  row.state = 'parked'
  park(row.name, shut)
  return false
end
