-- Accept: new jobs are stored, and become ready or scheduled; of ordered ones those wait whose turn it is not. Included, never run alone.
-- Returns ok, where all were stored, or
-- {full, {limit, its backlog, jobs that wait in the lane}}, where none was, or
-- 'ok | repeated <id> <id> ...': repeated: this very request was applied before; of those that were not stored, each with the job that its request id had made.
-- include lanes
-- include backlog
-- clock   now
-- key     scheduled  zset    scheduled
-- derive  ready      zset    ready:<queue>
-- derive  job        hash    job:<id>
-- derive  asked      string  request:<request>
-- many    ZADD
-- The job that a request id made, or the one of this very id: nothing may be stored over it. From now on the request id names this one.
local function made_by(wish, id)
  local earlier = redis.call('GET', asked .. wish) or redis.call('EXISTS', job .. id) == 1 and id
  if not earlier then redis.call('SET', asked .. wish, id, 'PX', request_id_ttl) end
  return earlier
end

-- What is left of the batches when those jobs are taken out whose request ids made one before.
local function unmade(repeated)
  local left, twice, at = {}, {}, 0
  for _, batch in ipairs(batches) do
    local rows, names = {}, batch[3] and {}
    for n = 1, #batch[2], 2 do
      local id, wish = batch[2][n], requests[at + 1]
      local earlier = wish ~= '' and made_by(wish, id)
      if not earlier then
        if names then names[#names + 1] = batch[3][(n + 1) / 2] end
        rows[#rows + 1], rows[#rows + 2] = id, batch[2][n + 1]
      elseif earlier ~= id or not repeated then
        -- Also of a repeat: the lost reply may have been the one that named another job.
        twice[#twice + 1], twice[#twice + 2] = id, earlier
      end
      at = at + 1
    end
    if #rows > 0 then left[#left + 1] = {batch[1], rows, names} end
  end
  return left, twice
end

-- As if this request had not come, so that it may come again.
local function refuse(why, left, before)
  if before then redis.call('SET', seen, before, 'EX', 600) else redis.call('UNLINK', seen) end
  local ids, at = {}, 0
  for _, batch in ipairs(left) do
    for n = 1, #batch[2], 2 do ids[batch[2][n]] = true end
  end
  for _, batch in ipairs(#requests > 0 and batches or {}) do
    for n = 1, #batch[2], 2 do
      at = at + 1
      if requests[at] ~= '' and ids[batch[2][n]] then redis.call('UNLINK', asked .. requests[at]) end
    end
  end
  return {'full', why}
end

-- ordered: gives the functions of turn.lua. store_unique: stores the unique jobs of batches, and returns the batches without them. before: what seen was, where it is this request's by now.
local function accept(ordered, store_unique, before)
  if before == nil then before = redis.call('SET', seen, number, 'EX', 600, 'GET') end
  local repeated = before == number
  local left, twice = batches, {}
  if #requests > 0 then left, twice = unmade(repeated) end
  if repeated then return 'repeated ' .. table.concat(twice, ' ') end
  local limits = #left > 0 and redis.call('EXISTS', limited) == 1
  local full = limits and limiting().overfull(left)
  if full then return refuse(full, left, before) end
  if store_unique then left = store_unique(left, twice, limits) end
  for _, batch in ipairs(left) do
    local queue, priority, delay, at, ends, fields, key = unpack(batch[1])
    local rows, due, line = batch[2], at > 0 and at or now + delay, {}
    local waits = due > now
    local score = waits and due or now - priority * 600000000
    fields[#fields + 1] = 'state'
    fields[#fields + 1] = waits and 'scheduled' or 'ready'
    if ends > 0 then
      fields[#fields + 1] = 'expires'
      fields[#fields + 1] = now + ends
    end
    local rule = limits and not waits and limiting().limits_of(fields[2], queue)
    if rule and not key then
      for n = 1, #rows, 2 do
        local name = limiting().lane_of(queue, rule, rows[n + 1], fields)
        redis.call('HSET', job .. rows[n], 'args', rows[n + 1], 'lane', name, unpack(fields))
        limiting().lanes().add(name, rows[n], score)
      end
    else
      for n = 1, #rows, 2 do
        redis.call('HSET', job .. rows[n], 'args', rows[n + 1], unpack(fields))
        line[n], line[n + 1] = score, rows[n]
      end
    end
    if key and not waits then line = ordered().take(key, line) end
    if key and rule then line = limiting().lanes().sort(queue, line) end
    if waits then
      -- Whoever sleeps until the next due time must learn of an earlier one.
      local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
      if not nearest or due < tonumber(nearest) then wake_up(queue) end
    elseif #line > 0 then
      wake_up(queue)
    end
    zadd_all(waits and scheduled or ready .. queue, line)
  end
  -- One text, since lists in lists are dear.
  return #twice > 0 and 'ok ' .. table.concat(twice, ' ') or 'ok'
end
