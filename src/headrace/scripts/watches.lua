-- Watches: the hooks and alarms that a worker knew within a week.
-- keys    watches watch
-- arg     limit    int   at most 1000
-- route   home
-- return  {now, {{name, when that was last, {field, value, ...}}, ...}}
local names, found = redis.call('ZREVRANGE', watches, 0, limit - 1, 'WITHSCORES'), {}
for n = 1, #names, 2 do
  found[#found + 1] = {names[n], names[n + 1], redis.call('HGETALL', watch .. names[n])}
end
return {now, found}
