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
-- arg     head       text    the first job's id
-- arg     batches    packed  {{queue, priority, delay, at, expires, {field, value, ...}}, {id, args, ...}} each; microseconds
-- return  {ok} | {repeated} | {duplicate, id}
local repeated = redis.call('SET', seen, number, 'EX', 600, 'GET') == number
if request ~= '' then
  local earlier = redis.call('GET', asked)
  -- Asked before the number is: the lost reply may have been the one that named another job.
  if earlier and earlier ~= head then return {'duplicate', earlier} end
  if repeated then return {'repeated'} end
  redis.call('SET', asked, head, 'PX', dedupe)
elseif repeated then
  return {'repeated'}
end
local later, queue_of = {}, {}
for _, batch in ipairs(batches) do
  local queue, priority, delay, at, ends, fields = unpack(batch[1])
  local rows, due = batch[2], at > 0 and at or now + delay
  local waits = due > now
  fields[#fields + 1] = 'state'
  fields[#fields + 1] = waits and 'scheduled' or 'ready'
  if ends > 0 then
    fields[#fields + 1] = 'expires'
    fields[#fields + 1] = now + ends
  end
  for n = 1, #rows, 2 do
    local id = rows[n]
    redis.call('HSET', job .. id, 'args', rows[n + 1], unpack(fields))
    if waits then
      later[#later + 1] = due
      later[#later + 1] = id
      queue_of[id] = queue
    else
      line_up(id, queue, now - priority * 600000000)
    end
  end
end
line_up_all()
if #later > 0 then
  for first = 1, #later, 1000 do
    redis.call('ZADD', scheduled, unpack(later, first, math.min(first + 999, #later)))
  end
  -- Whoever sleeps until the next due time must learn of an earlier one.
  local queue = queue_of[redis.call('ZRANGE', scheduled, 0, 0)[1]]
  if queue then wake_up(queue) end
end
return {'ok'}
