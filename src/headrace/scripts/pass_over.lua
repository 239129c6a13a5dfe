-- Pass over: a claim takes jobs from behind others, of whose kinds the worker can run no more now.
-- include slice wake serve
-- lazy    crowding pass_over
-- keys    ready
-- Entries that one claim looks at in a queue: all at its front, or FRONT there and the rest behind the cursor. What
-- comes to be in between meanwhile, by its priority, is found when it is at the front.
local LOOK, FRONT = 200, 50

-- Whether there is room for the kind of a task, which is taken then: crowded is {{kind, most, {task, ...}}, ...}.
local function new_rooms(crowded)
  local rooms, kinds, told, met, passed = {}, {}, {}, {}, {}
  for _, row in ipairs(crowded) do
    rooms[row[1]] = row[2]
    for _, task in ipairs(row[3]) do kinds[task] = row[1] end
  end
  local function may(queue, task)
    local kind = kinds[task or '']
    if kind and rooms[kind] <= 0 then
      if not met[kind] then met[kind], passed[#passed + 1] = true, kind end
      -- One who sleeps and has room for it hears of it, once. A token of the queue would come back to us.
      local line = wake .. queue .. '|' .. kind
      if not told[line] then redis.call('ZADD', line, 0, '') end
      told[line] = true
      return false
    end
    if kind then rooms[kind] = rooms[kind] - 1 end
    return true
  end
  return may, passed
end

-- packed: the claim's argument. Gives look(queue, left), which returns how much room is left; kinds, those that were
-- passed over; and looked, as the claim returns it.
local function pass_over(packed, ways)
  local crowded, behind = unpack(cmsgpack.unpack(packed))
  local cursors, looked, left, passed = {}, {}, 0, nil
  for n = 1, #behind, 3 do cursors[behind[n]] = {behind[n + 1], behind[n + 2]} end
  ways.may, passed = new_rooms(crowded)

  -- Takes from at most this many entries behind one; returns the last of them, and whether there are others behind it.
  local function some(queue, after, most)
    local _, rows = slice(ready .. queue, after[1], after[2], 0, most, 0, '-inf', '+inf')
    for n = 1, #rows, 2 do
      if left == 0 or ways.full then return after, 1 end
      after = {rows[n + 1], rows[n]}
      local fields, node = ways.read(rows[n])
      if string.byte(rows[n]) == 126 then
        redis.call('ZREM', ready .. queue, rows[n])
        left = limiting().serve_line(queue, {rows[n], rows[n + 1]}, left, ways)
      elseif ways.looks and limiting().to_lane(queue, rows[n], rows[n + 1], fields) then
        redis.call('ZREM', ready .. queue, rows[n])
      elseif ways.may(queue, fields[1]) then
        redis.call('ZREM', ready .. queue, rows[n])
        ways.take(queue, rows[n], rows[n + 1], fields, node)
        left = left - 1
      end
    end
    return after, #rows == 2 * most and 1 or 0
  end

  local function look(queue, room)
    left = room
    local cursor, at, rest = cursors[queue], nil, nil
    if cursor then
      some(queue, {'', ''}, FRONT)
      local found = left < room
      at, rest = some(queue, cursor, LOOK - FRONT)
      -- Where something has come before the cursor there may be more.
      if found then rest = 1 end
    else
      at, rest = some(queue, {'', ''}, LOOK)
    end
    if at[1] ~= '' then
      local n = #looked
      looked[n + 1], looked[n + 2], looked[n + 3], looked[n + 4] = queue, at[1], at[2], rest
    end
    return left
  end

  return {look = look, kinds = passed, looked = looked}
end
