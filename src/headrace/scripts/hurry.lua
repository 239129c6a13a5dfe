-- Hurry: every incarnation renews at once, and so hears what is new. Included, never run alone.
-- keys    owners
-- channel mail    mail:<owner>
local function hurry()
  for _, other in ipairs(redis.call('ZRANGE', owners, 0, -1)) do redis.call('PUBLISH', mail .. other, 'renew') end
end
