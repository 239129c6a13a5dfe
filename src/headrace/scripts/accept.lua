-- Accept: new jobs are stored, and become ready or scheduled; of ordered ones those wait whose turn it is not.
-- Returns ok: all were stored | {full, {limit, its backlog, jobs that wait in the lane}} | {full, {id that a job is to
-- follow, and which is not stored}}: none was | 'ok | repeated <id> <id> ...': repeated: this very request was applied
-- before; of those that were not stored, each with the job that its request id had made.
-- include request_ids lane_entry
-- keys    seen=sender:<sender> scheduled
-- arg     sender   text    a producer's slot; its requests come one after another
-- arg     number   text    number of the request; the same again means: the reply was lost
-- arg     requests packed  the request id of each job, or empty; {} when no job has one
-- arg     request_id_ttl   int     milliseconds that a request id is remembered
-- arg     batches  packed  {{queue, priority, delay, at, expires, {field, value, ...}, key}, {id, args or empty: none,
--                          ...}} each; microseconds. The key of ordered jobs, else none
-- ordered: gives the functions of turn.lua. take_names: gives the first jobs of a unique batch their names; returns
-- where their rows end, and where those begin that are stored by_rule, which gives the functions of unique_rows.lua.
-- before: what seen was, where it is this request's by now. following: gives the functions of after.lua.
local function accept(ordered, take_names, by_rule, before, following)
  if before == nil then before = redis.call('SET', seen, number, 'EX', 600, 'GET') end
  local repeated = before == number
  local left, twice = batches, {}
  if #requests > 0 then left, twice = request_ids().unmade(repeated) end
  if repeated then return 'repeated ' .. table.concat(twice, ' ') end
  local limits = #left > 0 and redis.call('EXISTS', limited) == 1
  local full = following and following().unknown(left) or limits and limiting().overfull(left)
  if full then return request_ids().refuse(full, left, before) end
  for _, batch in ipairs(left) do
    local queue, priority, delay, at, ends, fields, key = unpack(batch[1])
    local rows, names, due, line = batch[2], batch[3], at > 0 and at or now + delay, {}
    local last, rest = #rows, nil
    if names then last, rest = take_names(batch, twice) end
    local waits = due > now
    local score = waits and due or now - priority * 600000000
    local state = waits and 'scheduled' or 'ready'
    if ends > 0 then fields[#fields + 1], fields[#fields + 2] = 'expires', now + ends end
    local rule = limits and not waits and limiting().limits_of(fields[2], queue)
    if rule and not key then
      for n = 1, last, 2 do
        local lane_name = limiting().lane_of(queue, rule, rows[n + 1], fields)
        if names then redis.call('HSET', job .. rows[n], 'unique', names[(n + 1) / 2]) end
        -- In a record an empty text is not arguments that could be read.
        local args = rows[n + 1] ~= '' and rows[n + 1] or '\146\144\128'
        redis.call('HSET', job .. rows[n], 'args', args, 'st', state, 'lane', lane_name, unpack(fields))
        limiting().enter_lane(lane_name, rows[n], score)
      end
    elseif names then
      for n = 1, last, 2 do
        redis.call('HSET', job .. rows[n], 'args', rows[n + 1], 'unique', names[(n + 1) / 2], 'st', state,
          unpack(fields))
        line[n], line[n + 1] = score, rows[n]
      end
    else
      for n = 1, last, 2 do
        local args = rows[n + 1]
        -- What many jobs do not have takes no byte.
        if args == '' then redis.call('HSET', job .. rows[n], 'st', state, unpack(fields))
        else redis.call('HSET', job .. rows[n], 'args', args, 'st', state, unpack(fields)) end
        line[n], line[n + 1] = score, rows[n]
      end
    end
    if key and ordered and not waits and #line > 0 then
      line = (type(key) == 'table' and following().await_ends or ordered().await_turns)(key, line)
    end
    if key and rule then line = limiting().sort_line(queue, line) end
    if waits and #line > 0 then
      -- A worker that sleeps until the next due time must learn of an earlier one.
      local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
      if not nearest or due < tonumber(nearest) then wake_up(queue) end
    elseif #line > 0 then wake_up(queue) end
    if #line > 0 then redis.call('ZADD', waits and scheduled or ready .. queue, unpack(line)) end
    if rest then by_rule().store_by_rule(batch, rest, twice, limits) end
  end
  -- One text, since lists in lists are dear.
  return #twice > 0 and 'ok ' .. table.concat(twice, ' ') or 'ok'
end
