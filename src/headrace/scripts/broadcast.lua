-- Broadcast: a job for each of some live incarnations, in a line that only this one serves; each hears of it at once.
-- keys    seen=sender:<sender> owners ready job mail
-- arg     sender  text    the first job's id
-- arg     expires int     microseconds within which they must start; 0: none
-- arg     fields  packed  {field, value, ...} of each
-- arg     rows    packed  {owner, id, ...}, at most 1000
-- route   home
-- return  {id, ...} of those whose worker lives
local repeated = redis.call('SET', seen, '1', 'EX', 600, 'GET') == '1'
if expires > 0 then fields[#fields + 1], fields[#fields + 2] = 'expires', now + expires end
local stored = {}
for n = 1, #rows, 2 do
  local owner, id = rows[n], rows[n + 1]
  local ends = redis.call('ZSCORE', owners, owner)
  if ends and tonumber(ends) > now then
    stored[#stored + 1] = id
    if not repeated then
      redis.call('HSET', job .. id, 'st', 'ready', 'queue', '@' .. owner, unpack(fields))
      redis.call('ZADD', ready .. '@' .. owner, now, id)
      redis.call('PUBLISH', mail .. owner, '@')
    end
  end
end
return stored
