-- Gates: a gate is a limit for one value: how many of its jobs run, and when the next may start. Included, never run alone.
-- A gate that is closed has behind it the lanes and classes that wait for it; what is behind a gate is nowhere else.
-- include gate_numbers
-- include gate_record
-- lazy    limiting gates cost_of
-- clock   now
-- key     timers  zset    timers
-- derive  gate    string  gate:<gate>
-- derive  behind  set     behind:<gate>
-- many    MSET
-- many    UNLINK
-- many    ZADD
-- batch   gates   nil     functions for gates
-- What a start costs, as its record says.
local function cost_of(text)
  local cost = tonumber(text or 1) or 1
  return cost >= 1 and cost <= 1e9 and math.floor(cost) or 1
end

-- Made at first use: every script that lines jobs up includes this, and few jobs are limited.
local function gates()
  if batch.gates then return batch.gates end
  local self, known, unread = {}, {}, {}
  -- Gates that changed in this script, by name.
  self.changed = {}

  self.numbers = numbers_of

  -- The gate of all values of a limit that goes by one, while these are paused or else if it is asked for.
  self.of_all = function(name, open_too)
    local all = numbers_of(name).all
    return all and (all.paused or open_too) and self.of(name .. ':*', name)
  end

  -- As it is where nothing is stored of it.
  local function made(name, limit_name)
    local found = batch.numbers[limit_name] or numbers_of(limit_name)
    if found.overrides or name == found.star then found = numbers_for(found, name, limit_name) end
    -- All its fields: a table that grows costs more.
    if found.shape then return {name = name, limit = found, next = 0, at = 0, held = 0, waits = false, till = 0, strikes = 0, cells = {}} end
    return {name = name, limit = found, next = 0, at = 0, held = 0, waits = false, till = 0, strikes = 0}
  end

  -- A gate by '<limit>:<value>'. It says what is stored once load() has read all that were met since.
  self.of = function(name, limit_name)
    local g = known[name]
    if g then return g end
    g = made(name, limit_name)
    known[name] = g
    unread[#unread + 1] = g
    return g
  end

  -- Those that this script has met, by name.
  self.known = known

  -- The same of what the caller has read of it, or false.
  self.of_text = function(name, limit_name, text)
    local g = known[name]
    if g then return g end
    g = made(name, limit_name)
    known[name] = g
    if text and unpack_gate(g, text) then self.changed[name] = g end
    return g
  end

  -- A gate of a limit as it is before a first start, and the text of one after a start of cost 1.
  self.fresh = function(limit_name)
    local g, first = made('', limit_name), made('', limit_name)
    self.charge_all({first}, 1)
    self.changed[''] = nil
    return g, pack_gate(first)
  end

  self.load = function()
    for first = 1, #unread, 1000 do
      local names = {}
      for n = first, math.min(first + 999, #unread) do names[n - first + 1] = gate .. unread[n].name end
      for n, text in ipairs(redis.call('MGET', unpack(names))) do
        local g = unread[first + n - 1]
        if text and unpack_gate(g, text) then self.changed[g.name] = g end
      end
    end
    unread = {}
  end

  -- No job may cost more than there ever is, also where the number became smaller since it was enqueued.
  local function units_of(limit, cost)
    return limit.shape and math.min(cost, limit.rate) or cost
  end

  -- When it opens by itself for a job of this cost: false, it is open; infinity: when a job of it ends, or a pause.
  local function closed(g, cost)
    local limit, opens = g.limit, g.till
    local kind = limit.kind
    if limit.paused then return limit.paused > 0 and limit.paused or math.huge end
    if limit.most and g.held >= limit.most then return math.huge end
    if kind then
      local next_at = kind.opens(g, limit, limit.shape and units_of(limit, cost or 1))
      if next_at > opens then opens = next_at end
    end
    return opens > now and opens
  end
  self.closed = closed

  -- What is open, but not for a job of this cost, closes until that fits, so that cheap ones do not keep it waiting for ever. Whether there was any of these.
  self.too_dear = function(lists, cost)
    local found = false
    for _, list in ipairs(lists) do
      for _, g in ipairs(list) do
        local opens = closed(g, cost)
        if opens then g.next, found, self.changed[g.name] = math.max(g.next, opens), true, g end
      end
    end
    return found
  end

  -- The first closed one of some.
  self.shut = function(list)
    for _, g in ipairs(list) do
      if closed(g) then return g end
    end
  end

  -- How many jobs may start before these are to be looked at again; 0: one of them is closed.
  self.free = function(list)
    local free = math.huge
    for n = 1, #list do
      local g = list[n]
      local limit = g.limit
      if closed(g) then return 0 end
      if limit.kind then free = 1
      elseif limit.most and limit.most - g.held < free then free = limit.most - g.held end
    end
    return free
  end

  -- A job starts.
  self.charge_all = function(list, cost)
    for n = 1, #list do
      local g = list[n]
      local limit = g.limit
      g.held = g.held + 1
      if limit.kind then limit.kind.charge(g, limit, limit.shape and units_of(limit, cost) or cost) end
      g.at = now
      self.changed[g.name] = g
    end
  end

  -- More than a job cost, or, below 0, less: it has started at `since`.
  self.spend = function(g, units, since)
    local kind = g.limit.kind
    if kind and units < 0 and g.limit.shape then kind.refund(g, g.limit, -units, since)
    elseif kind then kind.charge(g, g.limit, units_of(g.limit, units)) end
    g.at = now
    self.changed[g.name] = g
  end

  -- So many jobs of this cost ended, or came back without having started: then their permits come back, too, so many, which were charged at `since`.
  -- One that was fine ends a series of refusals.
  self.release = function(g, cost, count, unused, since, fine)
    local held = g.held - count
    g.held = held > 0 and held or 0
    if fine and g.strikes > 0 and g.till <= now then g.till, g.strikes = 0, 0 end
    if unused > 0 and g.limit.kind then g.limit.kind.refund(g, g.limit, unused * units_of(g.limit, cost), since) end
    self.changed[g.name] = g
  end

  -- The other side has refused a call: closed for so long; 0: for a second, twice as long each time in a row, up to five minutes.
  -- Returns whether it was not closed so before.
  self.hold_off = function(g, delay)
    local closed = g.till > now
    -- Those that ran beside one that was refused were refused with it.
    if delay == 0 and closed then return false end
    if delay == 0 then
      delay = math.min(2 ^ g.strikes, 300) * 1000000
      g.strikes = math.min(g.strikes + 1, 9)
    end
    g.till, g.at = math.max(g.till, now + delay), now
    self.changed[g.name] = g
    return not closed
  end

  -- A lane or a class waits for it.
  self.park = function(unit, g)
    redis.call('SADD', behind .. g.name, unit)
    g.waits = true
    self.changed[g.name] = g
  end

  -- Those of the changed ones that are open though something waits for them; what is behind them is handed over.
  self.open_all = function(handle)
    for name, g in pairs(self.changed) do
      if g.waits and not closed(g) then
        g.waits = false
        for _, unit in ipairs(redis.call('SMEMBERS', behind .. name)) do handle(unit) end
        redis.call('UNLINK', behind .. name)
      end
    end
  end

  -- Stores what changed; returns one of those that open at a time. A gate that says nothing more is not stored; one that only remembers starts ends with them.
  self.store = function()
    local stays, size, ends, times, timed = {}, 0, {}, {}, nil
    for name, g in pairs(self.changed) do
      if g.held > 0 or g.waits then
        stays[size + 1] = gate .. name
        stays[size + 2] = pack_gate(g)
        size = size + 2
      else
        local kind = g.limit.kind
        local remembers = math.max(kind and kind.ends(g, g.limit) or 0, g.next, g.till + g.strikes * 60000000) - now
        if remembers > 0 then redis.call('SET', gate .. name, pack_gate(g), 'PX', math.ceil(remembers / 1000) + 1000)
        else ends[#ends + 1] = gate .. name end
      end
      local opens = g.waits and closed(g)
      if opens and opens < math.huge then
        -- Not more often than each 5 ms: by then more than one may start.
        times[#times + 1], times[#times + 2] = string.format('%.0f', math.max(opens, now + 5000)), 'gate:' .. name
        timed = name
      end
    end
    self.changed = {}
    mset_all(stays)
    unlink_all(ends)
    zadd_all(timers, times)
    return timed
  end

  batch.gates = self
  return self
end
