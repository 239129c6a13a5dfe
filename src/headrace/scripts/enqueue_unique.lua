-- Enqueue: as enqueue, with unique jobs among them: where another job has the name, one is not stored, or none is.
-- include accept turn unique_alive unique_rows after
-- arg     batches  packed  as of accept; behind the key of ordered jobs, false for none, {hold, clash, microseconds,
--                          microseconds at most} of unique ones, true for {done, existing}; behind the rows {name, ...}
-- route   desk
-- return  as accept says, of names as of request ids | 'clash <id> <id> ...': none is stored; who has the names
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
      if not holder or not keeps_name(name, holder) then return last, n end
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
