-- Take out: a job leaves the structure of its state, or is asked to stop where it runs.
-- include turn lane_exit
-- lazy    naming take_out ask_to_stop
-- keys    scheduled parking ready parked cancels held mail
-- Takes a job out of the structure of its state; false for one that is in none, since it runs or has ended.
local function take_out(id, state, queue, task)
  if state == 'ready' then
    if redis.call('ZREM', ready .. (queue or 'default'), id) == 0 then limiting().leave_lane(id) end
  elseif state == 'scheduled' then redis.call('ZREM', scheduled, id)
  elseif state == 'stopped' then redis.call('ZREM', held .. flow_of(id), id)
  elseif state == 'parked' then
    redis.call('ZREM', parked .. (task or ''), id)
    if redis.call('EXISTS', parked .. (task or '')) == 0 then redis.call('SREM', parking, task or '') end
  elseif state ~= 'blocked' then return false
  elseif is_ordered(id) then turns().leave_chain(id)
  elseif is_plain(id) then redis.call('HINCRBY', sums, 'blocked', -1) end
  return true
end

local function ask_to_stop(id, owner)
  redis.call('HSET', job .. id, 'cancel', 1)
  redis.call('SADD', cancels .. owner, id)
  redis.call('PUBLISH', mail .. owner, id)
end
