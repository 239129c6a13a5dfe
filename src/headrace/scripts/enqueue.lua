-- Enqueue: new jobs are stored, and become ready or scheduled; all of them or, when repeated, none.
-- include line
-- clock   now
-- key     seen       string  sender:<sender>    number of this sender's last request
-- key     asked      string  request:<request>  the job that a request id made; unused when request is empty
-- key     scheduled  zset    scheduled
-- derive  job        hash    job:<id>
-- arg     sender     text    a producer's slot; its requests come one after another
-- arg     number     text    number of the request; the same again means: the reply was lost
-- arg     request    text    the user's request id, or empty
-- arg     dedupe     int     milliseconds that a request id is remembered
-- arg     jobs       packed  {id, queue, priority, delay, at, expires, {field, value, ...}} each; microseconds
-- return  {ok} | {repeated} | {duplicate, id}
local repeated = redis.call('SET', seen, number, 'EX', 600, 'GET') == number
if request ~= '' then
  local earlier = redis.call('GET', asked)
  -- Asked before the number is: the lost reply may have been the one that named another job.
  if earlier and earlier ~= jobs[1][1] then return {'duplicate', earlier} end
  if repeated then return {'repeated'} end
  redis.call('SET', asked, jobs[1][1], 'PX', dedupe)
elseif repeated then
  return {'repeated'}
end
local later = {}
for _, new in ipairs(jobs) do
  local id, queue, priority, delay, at, ends, fields = unpack(new)
  local due = at > 0 and at or now + delay
  local state = 'ready'
  if due > now then
    state = 'scheduled'
    later[#later + 1] = due
    later[#later + 1] = id
  else
    line_up(id, queue, now - priority * 600000000)
  end
  if ends > 0 then
    fields[#fields + 1] = 'expires'
    fields[#fields + 1] = now + ends
    fields[#fields + 1] = 'more'
    fields[#fields + 1] = 1
  end
  redis.call('HSET', job .. id, 'state', state, unpack(fields))
end
line_up_all()
if #later > 0 then
  for first = 1, #later, 1000 do
    redis.call('ZADD', scheduled, unpack(later, first, math.min(first + 999, #later)))
  end
  -- Whoever sleeps until the next due time must learn of an earlier one.
  local nearest = redis.call('ZRANGE', scheduled, 0, 0)[1]
  for _, new in ipairs(jobs) do
    if new[1] == nearest then wake_up(new[2]) end
  end
end
return {'ok'}
