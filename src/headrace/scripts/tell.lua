-- Tell: what a person did, or what a worker found, is added to a stream; the oldest beyond 10,000 leave.
-- keys    acts events
-- arg     line     text    acts or events
-- arg     keep     int     seconds for which the stream stays after its newest entry
-- arg     request  text    names this request; the same again, among the newest 20 entries, adds nothing
-- arg     after    text    id of the newest entry that the writer knows, empty for none; any: it does not matter
-- arg     fields   packed  {field, value, ...}
-- route   home
-- return  the id of the entry; empty: another came between, and nothing was added
local stream = line == 'acts' and acts or events
-- What only removes comes first: a server whose memory is full lets the script write on.
redis.call('XTRIM', stream, 'MAXLEN', '~', 9999)
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 20)
for _, entry in ipairs(newest) do
  -- The request is the first field.
  if entry[2][2] == request then return entry[1] end
end
if after ~= 'any' and after ~= (newest[1] and newest[1][1] or '') then return '' end
local id = redis.call('XADD', stream, '*', 'request', request, unpack(fields))
redis.call('EXPIRE', stream, keep)
return id
