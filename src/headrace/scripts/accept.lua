-- Accept: new jobs are stored, and become ready or scheduled; of ordered ones those wait whose turn it is not. Included, never run alone.
-- Returns {ok} | {repeated}: this request was applied before | {duplicate, id}: its request id had made that job.
-- include wake
-- clock   now
-- key     scheduled  zset    scheduled
-- derive  ready      zset    ready:<queue>
-- derive  job        hash    job:<id>
local function accept(in_turn)
  local repeated = redis.call('SET', seen, number, 'EX', 600, 'GET') == number
  if request ~= '' then
    local earlier = redis.call('GET', asked)
    -- Asked before the number is: the lost reply may have been the one that named another job.
    if earlier and earlier ~= head then return {'duplicate', earlier} end
    if repeated then return {'repeated'} end
    redis.call('SET', asked, head, 'PX', dedupe)
  elseif repeated then
    return {'repeated'}
  end
  for _, batch in ipairs(batches) do
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
    for n = 1, #rows, 2 do
      redis.call('HSET', job .. rows[n], 'args', rows[n + 1], unpack(fields))
      line[n], line[n + 1] = score, rows[n]
    end
    if key and not waits then line = in_turn(key, line) end
    if waits then
      -- Whoever sleeps until the next due time must learn of an earlier one.
      local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
      if not nearest or due < tonumber(nearest) then wake_up(queue) end
    elseif #line > 0 then
      wake_up(queue)
    end
    for first = 1, #line, 1000 do
      redis.call('ZADD', waits and scheduled or ready .. queue, unpack(line, first, math.min(first + 999, #line)))
    end
  end
  return {'ok'}
end
