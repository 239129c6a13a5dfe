-- Enqueue: as enqueue, with unique jobs among them: one whose name another job has is not stored, or the whole call is
-- refused.
-- include accept turn unique_alive unique_rows after
-- key     seen     string  sender:<sender>  number of this sender's last request, and what else than ok was answered
-- arg     sender   text    a producer's slot; its requests come one after another
-- arg     number   text    number of the request; the same again means: the reply was lost
-- arg     requests packed  the request id of each job, or empty; {} when no job has one
-- arg     request_id_ttl   int     milliseconds that a request id is remembered
-- arg     batches  packed  as of enqueue; behind the key of ordered jobs, false for none, {hold, clash, microseconds,
--                          microseconds at most} of unique ones, true for {done, existing}, and behind their rows
--                          {name, ...}
-- route   desk
-- return  ok | {full, ...} as of enqueue | 'ok | repeated <id> <id> ...': of those that were not stored, each with the
--         job that has its name or request id | 'clash <id> <id> ...': none is stored; with the jobs that have their
--         names
local before = redis.call('SET', seen, number, 'EX', 600, 'GET')
-- A repeat is answered alike, though names may have changed hands.
if before and #before > #number and string.sub(before, 1, #number + 1) == number .. '|' then
  redis.call('SET', seen, before, 'EX', 600)
  return string.sub(before, #number + 2)
end

-- As far as names are free, or held by jobs that stand for the new ones. Returns where the rows end that accept stores,
-- now without gaps, and where those begin that are stored by their rule.
local function take_names(one, twice)
  local head, rows, names = unpack(one)
  local rule, last = head[8], 0
  local existing = rule == true or rule[2] == 'existing'
  if head[7] or not existing and rule[2] == 'debounce' then return 0, 1 end
  for n = 1, #rows, 2 do
    local id, name = rows[n], names[(n + 1) / 2]
    if set_name(name, id, rule) then
      if last + 1 < n then rows[last + 1], rows[last + 2], names[last / 2 + 1] = id, rows[n + 1], name end
      last = last + 2
    else
      local holder = existing and #requests == 0 and string.sub(redis.call('GET', unique .. name) or '', 1, 21)
      if not holder or not alive(name, holder) then return last, n end
      twice[#twice + 1], twice[#twice + 2] = id, holder
    end
  end
  return last
end

local clashes
for _, one in ipairs(batches) do
  -- What this request has stored clashes with nothing.
  local rule = before ~= number and one[1][8]
  if rule and rule ~= true and rule[2] == 'raise' and not clashes then clashes = naming().clashes_of() end
end
local reply = clashes and #clashes > 0 and 'clash ' .. table.concat(clashes, ' ')
  or accept(turns, take_names, naming, before, following)
if type(reply) == 'string' and reply ~= 'ok' and before ~= number then redis.call('APPEND', seen, '|' .. reply) end
return reply
