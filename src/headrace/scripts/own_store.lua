-- Own store: a built-in job is stored; a call of a hook moves its cursor, and is not stored where that has moved.
-- include turn
-- keys    own expires watch
-- arg     id       text    of the job; empty: only the cursor moves
-- arg     key      text    of an ordered job; empty: it is not ordered
-- arg     fields   packed  {field, value, ...} of its record
-- arg     hook     text    whose cursor moves; empty: none
-- arg     was      text    where the cursor was read
-- arg     at       text    where it is then
-- route   desk
-- return  stored | known: this job is stored already | moved: another dispatcher has moved the cursor
-- Built-in jobs that are listed; how long the list is kept without a new one, seconds.
local MOST, MONTH = 1000, 2592000

if hook ~= '' then
  if redis.call('HGET', watch .. hook, 'at') ~= was then return 'moved' end
  redis.call('HSET', watch .. hook, 'at', at, unpack(id ~= '' and {'job', id, 'called', now} or {}))
  if id == '' then return 'stored' end
elseif redis.call('EXISTS', job .. id) == 1 then
  return 'known'
end
redis.call('HSET', job .. id, 'st', 'ready', 'queue', '_own', unpack(fields))
if key == '' or #turns().await_turns(key, {now, id}) > 0 then line_up(id, '_own', now) end
-- What has left is listed no more. Of too many the oldest leave before their time.
for _, old in ipairs(redis.call('ZRANGE', own, 0, 99)) do
  if redis.call('EXISTS', job .. old) == 0 then redis.call('ZREM', own, old) end
end
redis.call('ZADD', own, now, id)
for _, old in ipairs(redis.call('ZRANGE', own, 0, -1 - MOST)) do
  redis.call('ZREM', own, old)
  redis.call('ZADD', expires, 'XX', now, old)
end
redis.call('EXPIRE', own, MONTH)
return 'stored'
