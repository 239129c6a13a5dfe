-- Cache list: cached values, those that end soonest first, each with its size and tags. Changes nothing.
-- include slice cache_tags
-- keys    cached
-- arg     tag     text  only values with this tag; empty: all
-- arg     after   text  cursor: the end of the last value seen, or empty
-- arg     member  text  cursor: its name
-- arg     limit   int   at most 500
-- route   home
-- return  {now, how many there are, {name, end, bytes, tags joined by commas, ...}}
local line = tag == '' and cached or tagged .. tag
-- Those that expired leave the index when another value is stored.
local gone = redis.call('ZCOUNT', line, '-inf', now)
local size, found = slice(line, after, member, 0, limit, 0, string.format('%.0f', now + 1), '+inf')
local rows = {}
for n = 1, #found, 2 do
  local name, stored = found[n], redis.pcall('STRLEN', value .. found[n])
  if type(stored) == 'number' and stored > 0 then
    for _, fact in ipairs({name, found[n + 1], stored, tags_of(name)}) do rows[#rows + 1] = fact end
  end
end
return {now, size - gone, rows}
