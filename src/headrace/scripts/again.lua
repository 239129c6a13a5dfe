-- Again: a job that waited elsewhere lines up; the caller takes it out of its old structure.
-- include turn
-- Score 0 means: as if it came now, less what its priority is worth.
local function ready_again(id, queue, priority, score)
  if is_ordered(id) and not turns().may_line_up(id) then return end
  redis.call('HSET', job .. id, 'st', 'ready')
  if score == 0 then score = now - (tonumber(priority) or 0) * 600000000 end
  line_up(id, queue or 'default', score)
end

-- An id without a record is forgotten, unless a workflow waits for it; one of another type holds up no others.
local function line_up_again(id, score)
  local f = redis.pcall('HMGET', job .. id, 'queue', 'priority', 'st')
  if f.err or not (f[1] or f[3] or is_node(id)) then return end
  ready_again(id, f[1], f[2], score or 0)
end
