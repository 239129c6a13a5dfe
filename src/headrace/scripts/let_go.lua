-- Let go: starts that left their owner's claims let go of their gates, and only these. Included, never run alone.
-- Nothing is read of the jobs, whose records may be gone: what a start holds is said beside the claims.
-- include lanes
-- lazy    limiting let_go hold_again
-- derive  slots  hash  slots:<owner>
local function let_go(owner, ids, unused)
  local key = slots .. owner
  if redis.call('EXISTS', key) == 0 then return end
  local all, g, released = lanes(), gates(), {}
  for first = 1, #ids, 1000 do
    local some = {unpack(ids, first, math.min(first + 999, #ids))}
    for n, name in ipairs(redis.call('HMGET', key, unpack(some))) do
      if name then
        local c = all.class_of(name)
        released[#released + 1] = {c.gates, all.gates(c, name), unused[some[n]]}
      end
    end
    redis.call('HDEL', key, unpack(some))
  end
  g.load()
  for _, one in ipairs(released) do
    for n = 1, 2 do
      for _, held in ipairs(one[n]) do g.release(held, one[3]) end
    end
  end
end

-- A start goes on whose claim the store had forgotten: it holds its gates, also where that is more than they let in.
local function hold_again(owner, id)
  local f = redis.call('HMGET', job .. id, 'task', 'queue', 'args', 'key')
  local rule = f[1] and limits_of(f[1], f[2] or 'default')
  if not rule then return end
  local all, name = lanes(), lane_of(f[2] or 'default', rule, f[3] or '', f[4])
  local c = all.class_of(name)
  local mine = all.gates(c, name)
  gates().load()
  redis.call('HSET', slots .. owner, id, name)
  for _, list in ipairs({c.gates, mine}) do
    for _, held in ipairs(list) do gates().charge(held) end
  end
end
