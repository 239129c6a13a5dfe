-- Move: a job that waits gets another queue, priority or time; all else of it stays.
-- include again take_out
-- keys    scheduled lane
-- removes first scheduled
-- arg     queue     text  empty: as it is
-- arg     priority  text  empty: as it is
-- arg     delay     int   microseconds from now; -1: none
-- arg     at        int   microseconds since 1970; 0: none. Without both it keeps its time or, if it is ready, its age
-- route   of id
-- return  moved <its state now> | missing | broadcast: its worker's alone | late: it would expire before | its state
local f = redis.call('HMGET', job .. id, 'st', 'queue', 'priority', 'task', 'expires', 'lane')
local state, line = f[1], f[2] or 'default'
if not state then return 'missing' end
if string.byte(line) == 64 then return 'broadcast' end
if state ~= 'ready' and state ~= 'scheduled' and state ~= 'parked' then return state end

local timed = at > 0 or delay >= 0
local due = at > 0 and at or now + delay
if not timed and state == 'scheduled' then due = tonumber(redis.call('ZSCORE', scheduled, id) or 0) end
local ends = tonumber(f[5] or 0)
if due > now and ends > 0 and due >= ends then return 'late' end

-- A ready job that gets no time stands where one of its age does, less what its new priority is worth.
local before, score = tonumber(f[3]) or 0, 0
local rank = priority == '' and before or tonumber(priority)
if not timed and state ~= 'scheduled' then
  local place = state == 'parked' and parked .. (f[4] or '') or ready .. line
  local stood = redis.call('ZSCORE', place, id) or f[6] and redis.call('ZSCORE', lane .. f[6], id)
  score = stood and tonumber(stood) + (before - rank) * 600000000 or 0
end

naming().take_out(id, state, line, f[4])
if queue ~= '' then redis.call('HSET', job .. id, 'queue', queue) line = queue end
-- A claim reads the priority of records that say so.
if rank ~= before then redis.call('HSET', job .. id, 'priority', rank, 'more', 1) end
if due > now then
  local nearest = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', job .. id, 'st', 'scheduled')
  redis.call('ZADD', scheduled, due, id)
  -- A dispatcher that sleeps until the next due time learns of an earlier one.
  if not nearest or due < tonumber(nearest) then wake_up(line) end
  return 'moved scheduled'
end
ready_again(id, line, rank, score)
return 'moved ' .. redis.call('HGET', job .. id, 'st')
