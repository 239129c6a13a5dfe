-- Restore: jobs whose claims the store forgot are running again under the same tokens, if they still wait to start.
-- include held_gates lane_exit unique_start
-- keys    self=owner:<owner> claims:<owner> last=token scheduled copy ready rest=owners
-- removes first claims
-- arg     starts  packed  {id, token, ...}, at most 1000
-- arg     promise int     until when the store has promised the incarnation its lease, microseconds; 0: it has not
-- route   desk
-- return  {ids that have another state now, or a newer start}, {ids without a record}
local known, back, others, gone = redis.call('HEXISTS', self, 'since') == 1, {}, {}, {}
local top = tonumber(redis.call('GET', last) or 0)
-- Takes it out of where it waits; false: it does not, or the store remembers this start or a newer one.
local function take(id, token, f)
  if not known or (tonumber(f[2]) or 0) >= token then return false end
  local place = f[1] == 'ready' and ready .. (f[3] or 'default') or f[1] == 'scheduled' and scheduled
  return place and (redis.call('ZREM', place, id) == 1 or f[1] == 'ready' and limiting().leave_lane(id))
end
local limits = redis.call('EXISTS', limited) == 1

for n = 1, #starts, 2 do
  local id, token = starts[n], starts[n + 1]
  local f = redis.pcall('HMGET', job .. id, 'st', 'token', 'queue')
  -- A number that was given out is never given out again, also by a server whose clock is behind.
  top = math.max(top, token)
  if f[2] and tonumber(f[2]) == token and tonumber(redis.call('ZSCORE', claims, id) or 0) == token then
    -- It was restored before.
  elseif f.err or f[1] and not take(id, token, f) then
    others[#others + 1] = id
  elseif f[1] then
    redis.call('HSET', job .. id, 'st', 'running', 'owner', owner, 'token', string.format('%.0f', token))
    back[#back + 1], back[#back + 2] = string.format('%.0f', token), id
    if is_unique(id) then naming().name_started(id) end
    if limits then limiting().hold_again(owner, id) end
  else
    gone[#gone + 1] = id
  end
end
zadd_all(claims, back)
-- The newest lease in the store is a minute older than one that it gave, and ended a minute ago: its data are an old
-- copy, since a failover loses seconds. (By the clock of a new primary that is behind it ends later.) Jobs that are
-- ready there have ended. All leases end, and register refuses until an operator decides.
local newest = tonumber(redis.call('ZRANGE', rest, -1, -1, 'WITHSCORES')[2] or 0)
if newest > 0 and promise - newest > 60000000 and now - newest > 60000000 then
  redis.call('HSET', copy, 'lost', promise - newest)
  redis.call('ZUNIONSTORE', rest, 1, rest, 'WEIGHTS', 0)
end
if top > 0 then redis.call('SET', last, string.format('%.0f', top)) end
return {others, gone}
