-- Why: what keeps a job from running: its record, place, jobs that it waits for, workers for it. Changes nothing.
-- include why_others why_workers
-- keys    scheduled paused resumes pauses schema flow parked held cancels asked=request unique turn chain
-- arg     fields     packed  names of fields of its record
-- arg     flow_fields packed names of fields of its workflow's record
-- arg     limit      int     most workers that are looked at
-- route   of id
-- return  {now, what Redis calls the type of its record, values of its fields, values of its workflow's, {name, value,
--         ...} of its place, others, gates, live workers, worker rows, {name, value, ...} of the server}; see
--         why_others and why_workers for the rows. A place has of these what is known: score (in
--         the structure of its state), ahead, follows (its name, which the job has whose end it waits for), behind
--         (how many jobs that it follows have not ended, 5 at most), paused, until, note (why it is paused), request
--         (the job that a request id of this name made), schema, asked (1: its worker was told to stop it)
local kind = redis.call('TYPE', job .. id).ok
local place, others, gates_met, rows = {}, {}, {}, {}
local function tell(name, value)
  if value then place[#place + 1], place[#place + 2] = name, value end
end

if kind ~= 'hash' then
  if kind == 'none' then
    tell('request', redis.call('GET', asked .. id))
    tell('schema', redis.call('GET', schema))
  end
  return {now, kind, {}, is_node(id) and redis.call('HMGET', flow .. flow_of(id), unpack(flow_fields)) or {}, place, {},
    {}, 0, {}, {}}
end

local f = redis.call('HMGET', job .. id, 'st', 'queue', 'task', 'owner', 'key', 'lane', 'parents', 'unique',
  'after')
local state, queue, task, owner = f[1] or '', f[2] or 'default', f[3] or '', f[4]

local function of_line()
  local score = redis.call('ZSCORE', ready .. queue, id)
  tell('ahead', score and redis.call('ZRANK', ready .. queue, id))
  if not score and f[6] then
    local at, before, met = look_at_lane(f[6], id)
    score, gates_met = at, met
    tell('ahead', before)
  end
  tell('score', score)
  tell('paused', redis.call('SISMEMBER', paused, queue))
  tell('until', redis.call('ZSCORE', resumes, queue))
  tell('note', redis.call('HGET', pauses, queue))
  rows = workers_for(queue, task, limit)
end

local looks = {
  running = function()
    tell('score', owner and redis.call('ZSCORE', claims .. owner, id))
    tell('asked', owner and redis.call('SISMEMBER', cancels .. owner, id))
    if owner then rows = {worker_row(owner, queue, task)} end
  end,
  scheduled = function() tell('score', redis.call('ZSCORE', scheduled, id)) end,
  ready = of_line,
  parked = function()
    of_line()
    tell('score', redis.call('ZSCORE', parked .. task, id))
  end,
  stopped = function() tell('score', redis.call('ZSCORE', held .. flow_of(id), id)) end,
  blocked = function()
    if is_node(id) then
      others = unfinished(id, f[7] or '')
      return
    elseif f[9] then
      others = followed(id, f[9])
      tell('behind', #others > 0 and #others)
      return
    end
    -- It follows the one that has its name: see unique_holder.lua.
    local names = f[8] and redis.call('GET', unique .. f[8]) or ''
    if string.sub(names, 23) == id then
      others = {row_of(string.sub(names, 1, 21))}
      tell('follows', f[8])
    elseif f[5] then
      local holder, rank = redis.call('GET', turn .. f[5]), redis.call('ZRANK', chain .. f[5], id)
      others = holder and {row_of(holder)} or {}
      tell('score', rank)
      tell('ahead', rank)
    end
  end,
  skipped = function() others = unfinished(id, f[7] or '') end,
}
if looks[state] then looks[state]() end
local flow_values = is_node(id) and redis.call('HMGET', flow .. flow_of(id), unpack(flow_fields)) or {}
return {now, kind, redis.call('HMGET', job .. id, unpack(fields)), flow_values, place, others, gates_met,
  redis.call('ZCOUNT', owners, '(' .. now, '+inf'), rows, looks[state] and server_facts() or {}}
