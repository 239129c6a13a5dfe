-- Lone gates: where each value has few jobs, most starts have a gate to themselves.
-- It is read, changed and stored as text, without being made. Included, never run alone.
-- include lane_classes
-- lazy    limiting
-- keys    gate
-- many    UNLINK
-- Lets go of those that one start holds, for which nothing waits and no call was refused. Returns the ids of the
-- others, what they hold, and how many it looked at.
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
