-- Bulk: which jobs a bulk operation is meant for, in bounded pieces.
-- include ids slice telling
-- keys    succeeded_at=succeeded failed_at=failed cancelled_at=cancelled quarantined_at=quarantined
-- keys    scheduled_at=scheduled ready_at=ready parked_at=parked lane_at=lane
-- arg     which   packed  {state, queue, task, key, cause}; empty: any
-- arg     limit   int     jobs that are looked at, at most 1000
-- Fields that are read of a job; where fewer are asked for, the first ones: each costs a sixth of a look.
local FIELDS = {'st', 'task', 'queue', 'key', 'priority', 'started'}

-- e: the parts of `which`, and bound: no job that came to its state later.
local function line_of(e)
  if e.state == 'ready' then return ready_at .. e.queue end
  if e.state == 'parked' then return parked_at .. e.task end
  return ({succeeded = succeeded_at, failed = failed_at, cancelled = cancelled_at, quarantined = quarantined_at,
    scheduled = scheduled_at})[e.state]
end

-- Whether a job was there at the confirmation. Of ended jobs the score says so, which the caller has compared.
local function was_there(e, id, score, f)
  if e.state == 'ready' then return score + (tonumber(f[5]) or 0) * 600000000 <= e.bound end
  if e.state ~= 'scheduled' and e.state ~= 'parked' then return true end
  -- An id begins with the time at which it was made, in steps of 5 ms.
  return math.max(number_of(id, 1, 8) * 5000, tonumber(f[6]) or 0) <= e.bound
end

local function is_meant(e, id, score, asked)
  local f = redis.pcall('HMGET', job .. id, unpack(FIELDS, 1, asked))
  if f.err or f[1] ~= e.state then return false end
  -- Built-in jobs are not the application's.
  if string.sub(f[2] or '', 1, 9) == 'headrace.' then return false end
  if e.queue ~= '' and e.queue ~= (f[3] or 'default') or e.task ~= '' and e.task ~= f[2]
    or e.key ~= '' and e.key ~= f[4] then
    return false
  end
  if not was_there(e, id, score, f) then return false end
  return e.cause == '' or telling().cause_of(f[2] or '', redis.call('HGET', job .. id, 'error') or '') == e.cause
end

-- The next jobs behind the cursor: those that are meant, how many were looked at, and {score, id, lane} of the last one
-- or nil: no more. It looks at `limit` jobs, and no further than to `most` that are meant. Behind the line of a queue
-- come the lanes of its limited jobs. What is done leaves them, so that others come first.
local function pick(bound, after, member, lane, limit, most)
  local e = {state = which[1], queue = which[2], task = which[3], key = which[4], cause = which[5], bound = bound}
  local ended = e.state ~= 'ready' and e.state ~= 'parked' and e.state ~= 'scheduled'
  local asked = not ended and 6 or e.key ~= '' and 4 or e.queue ~= '' and 3 or 2
  local found, looked, lanes = {}, 0, {{lane, string.match(lane, ' (.*)$')}}
  if e.state == 'ready' then
    for _, one in ipairs(queue_lanes(e.queue, lane, limit)) do lanes[#lanes + 1] = one end
  end
  for n, one in ipairs(lanes) do
    local place, name = one[1], one[2]
    local _, rows = slice(name and lane_at .. name or line_of(e), n == 1 and after or '', n == 1 and member or '', 0,
      limit - looked, 0, '-inf', ended and string.format('%.0f', e.bound) or '+inf')
    for m = 1, #rows, 2 do
      -- A class of lanes, or the first timer, is not a job.
      if string.byte(rows[m]) ~= 126 and is_meant(e, rows[m], tonumber(rows[m + 1]), asked) then
        found[#found + 1] = rows[m]
      end
      if #found == most then return found, looked + (m + 1) / 2, {rows[m + 1], rows[m], place} end
    end
    looked = looked + #rows / 2
    if looked >= limit then return found, looked, {rows[#rows], rows[#rows - 1], place} end
  end
  return found, looked
end
