-- Stats_read: what buckets hold, all of it at one moment: no writer comes between a sum and what is subtracted from it.
-- keys    stat
-- arg     names   packed  {date:label, ...}, at most 1000
-- arg     fields  packed  the fields that are wanted; empty for all
-- route   home
-- return  {the fields and counts of each as one text with a line each, or {n or false, ...} when fields are named}
-- One text: a histogram has hundreds of counters, each a value for Lua to make and for the server to write.
local found = {}
for n, name in ipairs(names) do
  found[n] = #fields > 0 and redis.call('HMGET', stat .. name, unpack(fields))
    or table.concat(redis.call('HGETALL', stat .. name), '\n')
end
return found
