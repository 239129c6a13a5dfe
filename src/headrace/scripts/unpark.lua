-- Unpark: parked jobs of a task become ready, since a worker that knows it has come.
-- include again
-- clock   now
-- key     parking  set   parking
-- key     parked   zset  parked:<task>
-- arg     task     text
-- arg     limit    int   most jobs, at most 1000
-- return  jobs moved
local ids = limit > 0 and redis.call('ZRANGE', parked, 0, limit - 1) or {} -- 0 to -1 would be all
-- The removal comes first: once a script has written, a server whose memory is full lets it write on.
if #ids > 0 then redis.call('ZREM', parked, unpack(ids)) end
for _, id in ipairs(ids) do line_up_again(id) end
if redis.call('EXISTS', parked) == 0 then redis.call('SREM', parking, task) end
line_up_all()
return #ids
