-- Lanes: where limited jobs wait to start. Included, never run alone.
-- A lane has the jobs of one queue that pass the same gates, a class the lanes with the same limits. The class stands in the line of its queue, as '~' and its
-- limits, and its lanes take turns. What waits for a closed gate is behind that gate instead: a lane, or where the limit goes by no value its class.
-- include wake
-- include limited_values
-- include gates
-- include overrides
-- include excess
-- lazy    limiting lanes
-- clock   now
-- key     scheduled  zset    scheduled
-- derive  ready      zset    ready:<queue>
-- derive  job        hash    job:<id>
-- derive  classes    hash    classes:<queue>
-- derive  class      zset    class:<class>
-- derive  lane       zset    lane:<lane>
-- derive  waiting    set     waiting:<limit>
-- many    ZADD
-- batch   lanes      nil     functions for lanes
-- step    store_lanes
-- In a class, lanes that are behind a gate have their turn above this.
local PARKED = 2 ^ 50

-- The numbers of a limit all of whose gates have the same, and remember no more than a time and a count; false: they do not.
local function lone(limit)
  return not limit.overrides and not limit.shape and (limit.most or 1) >= 1 and limit
end

local function lanes()
  if batch.lanes then return batch.lanes end
  local self, known, added, touched, sub = {}, {}, {}, {}, string.sub
  local g = gates()

  -- A class by '<queue>|<limits>': its gates, and the names of its limits that go by a value.
  self.class = function(name)
    local c = known[name]
    if c then return c end
    local bar = string.find(name, '|', 1, true)
    c = {name = name, prefix = name .. '|', size = #name + 1, queue = string.sub(name, 1, bar - 1), limits = string.sub(name, bar + 1), gates = {}, bars = {}, valued = {}, names = {}}
    for word in string.gmatch(c.limits, '[^,]+') do
      if string.sub(word, -1) == '=' then
        word = string.sub(word, 1, -2)
        c.valued[#c.valued + 1] = word
        c.bars[#c.bars + 1] = g.of_all(word) or nil
      else
        c.gates[#c.gates + 1] = g.of(word .. ':', word)
      end
      c.names[#c.names + 1] = word
      c.strict = c.strict or g.numbers(word).full
    end
    if #c.valued == 1 then
      c.word, c.lead = c.valued[1], c.valued[1] .. ':'
      c.lone = #c.names == 1 and lone(g.numbers(c.word))
    end
    g.load()
    known[name] = c
    return c
  end

  -- The closed gate of a class, if one is: of its own, or of all values while these are paused.
  self.shut = function(c)
    return g.shut(c.gates) or g.shut(c.bars)
  end

  -- The class of a lane, or of a class.
  local last
  self.class_of = function(unit)
    if last and sub(unit, 1, last.size) == last.prefix then return last end
    local bar = string.find(unit, '|', 1, true)
    last = self.class(string.sub(unit, 1, (string.find(unit, '|', bar + 1, true) or 0) - 1))
    return last
  end

  -- The gates of a lane's values, of a name or a text that has it until there; the caller has them read.
  self.gates = function(c, name, stop)
    if c.lead then return {g.of(c.lead .. sub(name, c.size + 1, stop), c.word)} end
    local valued, found = c.valued, {}
    if #valued == 0 then return found end
    for value in string.gmatch(sub(name, c.size + 1, stop) .. '|', '(.-)|') do
      local word = valued[#found + 1]
      if word then found[#found + 1] = g.of(word .. ':' .. value, word) end
    end
    return found
  end

  -- How many jobs wait in its lanes, the turn from which these go on, and its pace: where it stands in its line, by the time of its jobs.
  self.begin = function(c)
    if not c.turn then
      local said = redis.call('HMGET', classes .. c.queue, c.limits, c.limits .. '|')
      local turn, pace = string.match(said[2] or '', '^(%S+) (%S+)$')
      c.count, c.turn, c.pace = tonumber(said[1] or 0), tonumber(turn or 0), tonumber(pace)
    end
    return c
  end

  -- Where it is to stand: as old as the job whose turn it is, or older where its jobs wait longer than those of its line. So a new value that has its turn
  -- does not keep old jobs waiting behind all others of the queue.
  self.score = function(c, first)
    local head = tonumber(redis.call('ZRANGE', lane .. first, 0, 0, 'WITHSCORES')[2] or now)
    return math.min(head, self.begin(c).pace or head)
  end

  -- More or fewer jobs wait in it.
  self.count = function(c, by)
    self.begin(c)
    c.count = c.count + by
    touched[c] = touched[c] or {}
  end

  -- It is to stand where it belongs when the script ends; by a job with this score if there is one.
  self.touch = function(c, score)
    local t = touched[c] or {}
    touched[c] = t
    if score then t.score = math.min(score, t.score or score) end
  end

  self.add = function(name, id, score)
    local rows = added[name]
    if not rows then rows = {} added[name] = rows end
    rows[#rows + 1], rows[#rows + 2] = score, id
  end

  -- Of jobs that line up in a queue, {score, id, ...}, those that are limited go to their lanes; the rest is returned.
  self.sort = function(queue, line)
    local rest = {}
    for n = 1, #line, 2 do
      local f = redis.pcall('HMGET', job .. line[n + 1], 'task', 'args', 'key', 'expires')
      local rule = not f.err and f[1] and f[4] ~= LEFT_OUT and limits_of(f[1], queue)
      if rule then
        local name = lane_of(queue, rule, f[2] or '', f[3])
        redis.call('HSET', job .. line[n + 1], 'lane', name)
        self.add(name, line[n + 1], line[n])
      else
        rest[#rest + 1], rest[#rest + 2] = line[n], line[n + 1]
      end
    end
    return rest
  end

  -- A job leaves the lane in which it waits; false: it is in none.
  self.remove = function(id)
    local name = redis.pcall('HGET', job .. id, 'lane')
    if type(name) ~= 'string' or redis.call('ZREM', lane .. name, id) == 0 then return false end
    local c = self.class_of(name)
    self.count(c, -1)
    if redis.call('EXISTS', lane .. name) == 0 then redis.call('ZREM', class .. c.name, name) end
    return true
  end

  -- Jobs leave the lanes of a queue as long as there is room(), each handed over.
  self.clear = function(queue, room, handle)
    for _, limits in ipairs(redis.call('HKEYS', classes .. queue)) do
      local c = string.sub(limits, -1) ~= '|' and self.class(queue .. '|' .. limits)
      while c and room() > 0 do
        local name = redis.call('ZRANGE', class .. c.name, 0, 0)[1]
        if not name then break end
        local popped = redis.call('ZPOPMIN', lane .. name, room())
        for n = 1, #popped, 2 do handle(popped[n]) end
        self.count(c, -#popped / 2)
        if redis.call('EXISTS', lane .. name) == 0 then redis.call('ZREM', class .. c.name, name) end
      end
      if c then self.touch(c) end
    end
  end

  -- How many jobs are ready in a queue: those in lanes, too, and without the classes that stand in its line.
  self.size = function(queue)
    local size, counts = redis.call('ZCARD', ready .. queue), redis.call('HGETALL', classes .. queue)
    for n = 1, #counts, 2 do
      if string.sub(counts[n], -1) ~= '|' then
        size = size + tonumber(counts[n + 1])
        if redis.call('ZSCORE', ready .. queue, '~' .. counts[n]) then size = size - 1 end
      end
    end
    return size
  end

  -- New lanes enter their class, unless one of their gates is closed.
  local function enter(c, names)
    local fresh, rows = {}, {}
    for first = 1, #names, 1000 do
      local some = {unpack(names, first, math.min(first + 999, #names))}
      for n, turn in ipairs(redis.call('ZMSCORE', class .. c.name, unpack(some))) do
        if not turn then fresh[#fresh + 1] = {some[n], self.gates(c, some[n])} end
      end
    end
    g.load()
    for _, one in ipairs(fresh) do
      local shut = g.shut(one[2])
      if shut then g.park(one[1], shut) end
      rows[#rows + 1], rows[#rows + 2] = c.turn + (shut and PARKED or 0), one[1]
    end
    zadd_all(class .. c.name, rows)
  end

  local function gates_of(name)
    local c = self.class_of(name)
    local found = self.gates(c, name)
    for _, one in ipairs(c.gates) do found[#found + 1] = one end
    return found
  end

  -- Some of those that came, or of those before them, may end as cancelled: a worker sees to it.
  local function leave_out(c, name, rows)
    for _, id in ipairs(excess(name, rows, gates_of)) do
      self.remove(id)
      redis.call('HSET', job .. id, 'expires', LEFT_OUT, 'more', 1)
      redis.call('ZADD', ready .. c.queue, now, id)
      wake_up(c.queue)
    end
  end

  local function store_added()
    local by_class = {}
    for name, rows in pairs(added) do
      local c = self.class_of(name)
      by_class[c] = by_class[c] or {}
      table.insert(by_class[c], name)
      zadd_all(lane .. name, rows)
      self.count(c, #rows / 2)
      self.touch(c, rows[1])
    end
    local came = added
    added = {}
    for c, names in pairs(by_class) do
      enter(c, names)
      for _, name in ipairs(c.strict and names or {}) do leave_out(c, name, came[name]) end
    end
  end

  -- A gate opened for a lane or a class.
  local function free(unit)
    local c = self.class_of(unit)
    if unit ~= c.name then
      local turn = tonumber(redis.call('ZSCORE', class .. c.name, unit) or 0)
      if turn >= PARKED then redis.call('ZADD', class .. c.name, math.max(turn - PARKED, self.begin(c).turn), unit) end
    end
    self.touch(c)
  end

  self.first = function(c)
    return redis.call('ZRANGEBYSCORE', class .. c.name, '-inf', '(' .. PARKED, 'LIMIT', 0, 1)[1]
  end

  -- Into the line of its queue, or behind its closed gate.
  local function place(c, score)
    local first = self.first(c)
    if not first then return redis.call('ZREM', ready .. c.queue, '~' .. c.limits) end
    local shut = self.shut(c)
    if shut then return g.park(c.name, shut) end
    local at = self.score(c, first)
    redis.call('ZADD', ready .. c.queue, 'LT', math.min(at, score or at), '~' .. c.limits)
    wake_up(c.queue)
  end

  local function store_count(c)
    local key = classes .. c.queue
    if not c.count then return end
    if c.count <= 0 then
      redis.call('HDEL', key, c.limits, c.limits .. '|')
      for _, name in ipairs(c.names) do redis.call('SREM', waiting .. name, c.name) end
    else
      local where = string.format('%.0f %.0f', c.turn, c.pace or now)
      if redis.call('HSET', key, c.limits, c.count, c.limits .. '|', where) > 0 then
        -- Also where no worker is woken, since a gate is closed.
        redis.call('SADD', queues, c.queue)
        for _, name in ipairs(c.names) do redis.call('SADD', waiting .. name, c.name) end
      end
    end
    c.count, c.turn, c.pace = nil, nil, nil
  end

  -- The first of the times is told by one entry of what is scheduled: so all who sleep hear of it, and others pay nothing.
  local function tell_time()
    local first = redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
    if not first then return redis.call('ZREM', scheduled, '~') end
    local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', scheduled, first, '~')
    self.due = first
    return not nearest or tonumber(first) < tonumber(nearest)
  end

  self.store = function(quiet)
    store_added()
    g.open_all(free)
    for c, t in pairs(touched) do place(c, t.score) end
    for c in pairs(touched) do store_count(c) end
    touched = {}
    local timed = g.store()
    if (timed or self.timed) and tell_time() and timed and not quiet then
      -- A dispatcher that sleeps learns of the earlier time.
      local unit = redis.call('SRANDMEMBER', behind .. timed)
      if unit then wake_up(self.class_of(unit).queue) end
    end
    self.timed = false
  end

  -- The numbers of a limit changed: its classes are looked at now, their lanes a piece at a time.
  self.look_anew = function(name)
    for _, unit in ipairs(redis.call('SMEMBERS', waiting .. name)) do
      redis.call('ZADD', timers, now, 'lanes:0:' .. unit)
      self.timed = true
      wake_up(self.class(unit).queue)
    end
  end

  -- What an operator said of a limit, or of one of its values, changed or is over.
  self.look_at_limit = function(name, value)
    if value == '*' then self.look_anew(name) end
    local one = g.of(name .. ':' .. (value == '*' and not g.of_all(name, true) and '' or value), name)
    g.load()
    g.changed[one.name] = one
    local unit = redis.call('SRANDMEMBER', waiting .. name)
    if unit then wake_up(self.class(unit).queue) end
    self.timed = true
  end

  -- A limit is gone: its gates open for what waits behind them.
  self.forget = function(name)
    self.look_anew(name)
    local own, all = g.of(name .. ':', name), g.of(name .. ':*', name)
    g.load()
    g.changed[own.name], g.changed[all.name] = own, all
  end

  local function look_at(cursor, unit)
    local c = self.class(unit)
    local found = redis.call('ZSCAN', class .. unit, cursor, 'COUNT', 500)
    local met = {}
    for n = 1, #found[2], 2 do
      if tonumber(found[2][n + 1]) >= PARKED then met[#met + 1] = self.gates(c, found[2][n]) end
    end
    g.load()
    met[#met + 1] = c.gates
    for _, list in ipairs(met) do
      for _, one in ipairs(list) do g.changed[one.name] = one end
    end
    if found[1] ~= '0' then redis.call('ZADD', timers, now, 'lanes:' .. found[1] .. ':' .. unit) end
  end

  -- What is due of the times: gates that may open, classes that are looked at.
  self.tick = function(most)
    local due = redis.call('ZRANGEBYSCORE', timers, '-inf', now, 'LIMIT', 0, most)
    self.timed = true
    if #due == 0 then return 0 end
    redis.call('ZREM', timers, unpack(due))
    local met, over = {}, {}
    for _, one in ipairs(due) do
      local kind, name = string.match(one, '^(%l+):(.*)$')
      if kind == 'gate' then
        met[#met + 1] = g.of(name, string.match(name, '^[^:]*'))
      elseif kind == 'hold' then
        local gate_name = string.match(name, '^[^|]*')
        over[#over + 1] = g.of(gate_name, string.match(gate_name, '^[^:]*'))
      elseif kind == 'limit' then
        local limit_name, value = string.match(name, '^([^:]*):(.*)$')
        overrule(limit_name, value, {}, {})
        self.look_at_limit(limit_name, value)
      elseif kind == 'clock' then
        local found = redis.call('ZSCAN', timers, name, 'COUNT', 500)
        for n = 1, #found[2], 2 do
          local gate_name = string.match(found[2][n], '^gate:(.*)$')
          if gate_name then met[#met + 1] = g.of(gate_name, string.match(gate_name, '^[^:]*')) end
        end
        if found[1] ~= '0' then redis.call('ZADD', timers, now, 'clock:' .. found[1]) end
      elseif kind == 'lanes' then
        local cursor, unit = string.match(name, '^(%d+):(.*)$')
        look_at(cursor, unit)
      end
    end
    g.load()
    -- A program that held a limit was not heard of for its lease.
    for _, one in ipairs(over) do g.release(one, 1, 1, 0) end
    for _, one in ipairs(met) do g.changed[one.name] = one end
    return #due
  end

  batch.lanes = self
  return self
end

local function store_lanes()
  if batch.lanes then batch.lanes.store() end
end
