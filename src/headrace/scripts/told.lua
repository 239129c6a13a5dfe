-- Told: entries of a stream, by time, a bounded piece at a time.
-- keys    stream=<line>
-- arg     line    text    acts, events or deaths
-- arg     after   text    id of the last entry seen; empty: from the first one
-- arg     limit   int     at most 1000; 0: only where the stream ends
-- arg     look    int     entries that are looked at, at most 2000
-- arg     desc    int     1: newest first
-- arg     kinds   packed  only entries whose field kind is one of these; none: all
-- route   all
-- return  {entries that it holds, {{id, {field, value, ...}}, ...}, the last looked at or empty: no more, the newest}
local wanted, found, last = {}, {}, ''
for _, kind in ipairs(kinds) do wanted[kind] = true end
local function is_wanted(fields)
  if #kinds == 0 then return true end
  for n = 1, #fields, 2 do
    if fields[n] == 'kind' then return wanted[fields[n + 1]] end
  end
end

local from = after == '' and (desc == 1 and '+' or '-') or '(' .. after
local most = #kinds == 0 and limit or look
local rows = {}
if most > 0 then
  rows = desc == 1 and redis.call('XREVRANGE', stream, from, '-', 'COUNT', most)
    or redis.call('XRANGE', stream, from, '+', 'COUNT', most)
end
for n, row in ipairs(rows) do
  if is_wanted(row[2]) then found[#found + 1] = row end
  if n == #rows and n == most or #found == limit then last = row[1] end
  if #found == limit then break end
end
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
return {redis.call('XLEN', stream), found, last, newest and newest[1] or ''}
