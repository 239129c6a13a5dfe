-- Schedule walk: silent schedules tick again; those that no live worker declares are orphaned, and in the end deleted.
-- include declarers
-- keys    ticking schedules history=ticks
-- removes first ticking
-- arg     after      text  the walk begins behind this name
-- arg     limit      int   most schedules, at most 500
-- route   home
-- return  {name to go on behind or empty, now, when the next tick is due or 0, {schedules with ticks reckoned anew}}
-- Orphaned for so long: deleted. A clock that was set back by so much has the ticks reckoned anew (microseconds).
local SHOWN, BACK = 7 * 86400000000, 3600000000
local rewound = {}

local function walk(name)
  local f = redis.call('HMGET', plan .. name, 'source', 'declared', 'fingerprint', 'undeclared', 'orphaned', 'paused',
    'ended', 'seen', 'known', 'again_to')
  if not f[1] then return redis.call('ZREM', schedules, name) end
  if standing(name, f) == 'orphaned' then
    -- A worker that knows of no tick does not walk.
    local ends = (f[5] or now) + SHOWN
    if not f[6] and ends > now then return redis.call('ZADD', ticking, ends, name) end
    if ends <= now then
      redis.call('ZREM', schedules, name)
      redis.call('UNLINK', plan .. name, history .. name)
    end
    return redis.call('ZREM', ticking, name)
  end
  if f[6] or f[7] then return end
  if f[8] and tonumber(f[8]) > now + BACK then
    rewound[#rewound + 1] = name
    redis.call('HSET', plan .. name, 'ticks', '', 'known', now, 'again_to',
      string.format('%.0f', math.max(f[9] or 0, f[10] or 0)))
    redis.call('HDEL', plan .. name, 'final')
    redis.call('ZADD', ticking, now, name)
  elseif not redis.call('ZSCORE', ticking, name) then
    redis.call('ZADD', ticking, now, name)
  end
  redis.call('HSET', plan .. name, 'seen', now)
end

local names = redis.call('ZRANGE', schedules, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, limit)
-- A record that cannot be read must not hold up the others; see fire.
for _, name in ipairs(names) do pcall(walk, name) end
return {#names == limit and names[#names] or '', now, redis.call('ZRANGE', ticking, 0, 0, 'WITHSCORES')[2] or 0,
  rewound}
