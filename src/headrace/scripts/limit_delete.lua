-- Limit delete: a limit that no running code declares, and that nothing holds, is forgotten, with what operators said
-- of it. What waits for it starts without it.
-- include look_anew
-- keys    numbers=limit:<limit> overrides:<limit> waits=waiting:<limit>
-- keys    limit_names=limits limited timers owners classes slots about=owner known_by=tasks former=superseded
-- removes first timers
-- route   home
-- return  {unknown} | {declared, {places of workers whose code has it}} | {held, how many jobs and programs hold it} |
--         {some: call again} | {deleted, how many jobs wait for it}
local PIECE, LOOKS = 500, 20
if redis.call('EXISTS', numbers) == 0 then return {'unknown'} end
local gate_of_all = limit .. ':'

-- Whether the jobs of a lane or a class have this limit.
local function has(unit)
  local limits = string.match(unit, '^[^|]*|([^|]*)')
  return limits and string.find(',' .. string.gsub(limits, '=', '') .. ',', ',' .. limit .. ',', 1, true)
end

local places, held = {}, 0
for _, owner in ipairs(redis.call('ZRANGE', owners, 0, -1)) do
  if redis.call('HEXISTS', known_by .. owner, '%limit:' .. limit) == 1 then
    places[#places + 1] = redis.call('HGET', about .. owner, 'place') or owner
  end
  for _, text in ipairs(redis.call('HVALS', slots .. owner)) do
    if has(text) then held = held + 1 end
  end
end
if #places > 0 then return {'declared', places} end
-- Programs: of very many timers some are looked at. One that is missed lets go as any other.
local cursor = '0'
for _ = 1, LOOKS do
  local found = redis.call('ZSCAN', timers, cursor, 'COUNT', PIECE)
  cursor = found[1]
  for n = 1, #found[2], 2 do
    if string.sub(found[2][n], 1, 5 + #gate_of_all) == 'hold:' .. gate_of_all then held = held + 1 end
  end
  if cursor == '0' then break end
end
if held > 0 then return {'held', held} end

-- Timers of what operators said go with it.
local said = redis.call('HSCAN', overrides, 0, 'COUNT', PIECE)[2]
for n = 1, #said, 2 do
  redis.call('ZREM', timers, 'limit:' .. gate_of_all .. said[n])
  redis.call('HDEL', overrides, said[n])
end
limiting().timers_moved()
local left = redis.call('HLEN', overrides)
if left > 0 then
  redis.call('HSET', numbers, 'overrides', left)
  return {'some'}
end
redis.call('UNLINK', numbers)
redis.call('ZREM', limit_names, limit)
redis.call('HDEL', former, 'limit:' .. limit)
local rows = redis.call('HGETALL', limited)
for n = 1, #rows, 2 do
  local known = string.find(rows[n], '^task:') or string.find(rows[n], '^queue:')
  local rest, met = {}, known and cmsgpack.unpack(rows[n + 1]) or {}
  for _, row in ipairs(met) do
    if row[1] ~= limit then rest[#rest + 1] = row end
  end
  if #rest == 0 and #met > 0 then redis.call('HDEL', limited, rows[n])
  elseif #rest < #met then redis.call('HSET', limited, rows[n], cmsgpack.pack(rest)) end
end
local waiting = 0
for _, unit in ipairs(redis.call('SMEMBERS', waits)) do
  local queue, limits = string.match(unit, '^([^|]*)|(.*)$')
  waiting = waiting + tonumber(redis.call('HGET', classes .. queue, limits) or 0)
end
limiting().look_at_all(limit)
return {'deleted', waiting}
