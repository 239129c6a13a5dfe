-- Tell: what a person did, or what a watcher found, is added to a stream; the oldest beyond 10,000 leave.
-- key     acts     stream  acts
-- key     events   stream  events
-- arg     line     text    acts or events
-- arg     keep     int     seconds for which the stream stays after its newest entry
-- arg     request  text    names this request; the same again, among the newest 20 entries, adds nothing
-- arg     fields   packed  {field, value, ...}
-- return  the id of the entry
local stream = line == 'acts' and acts or events
-- What only removes comes first: a server whose memory is full lets the script write on.
redis.call('XTRIM', stream, 'MAXLEN', '~', 9999)
for _, entry in ipairs(redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 20)) do
  -- The request is the first field.
  if entry[2][2] == request then return entry[1] end
end
local id = redis.call('XADD', stream, '*', 'request', request, unpack(fields))
redis.call('EXPIRE', stream, keep)
return id
