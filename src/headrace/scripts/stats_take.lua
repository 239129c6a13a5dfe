-- Stats_take: batches that came over a message broker are added to the buckets as one, unless some were added before.
-- include stats_apply
-- keys    flow=stat-flow seen=sender
-- arg     batches  packed  {sender, number of its first batch here, number of its last one, ...}
-- arg     gaps     int     1: numbers that are missing are batches that the broker dropped
-- arg     lost     int     how many are missing among these
-- arg     upto     int     when the last of these batches was sent, microseconds
-- arg     window   int     seconds for which numbers are remembered
-- arg     keep     int     seconds after which what is known of the line goes away
-- route   home
-- return  {ok, {counters that refused}} | {repeated, {sender, number of its last batch, ...}}: nothing was added
-- A sender's batches come in their order, so what is not above its last number was added, or came twice.
local known = {}
for n = 1, #batches, 3 do
  local before = tonumber(redis.call('GET', seen .. batches[n]) or 0)
  if before >= batches[n + 1] then
    known[#known + 1] = batches[n]
    known[#known + 1] = tostring(before)
  elseif gaps == 1 and string.sub(batches[n], -2) == '.0' then
    lost = lost + batches[n + 1] - before - 1
  end
end
if #known > 0 then return {'repeated', known} end
for n = 1, #batches, 3 do redis.call('SET', seen .. batches[n], batches[n + 2], 'EX', window) end
redis.call('HSET', flow, 'taken', now, 'upto', upto)
if lost > 0 then redis.call('HINCRBY', flow, 'lost', lost) end
redis.call('EXPIRE', flow, keep)
return {'ok', apply(buckets, index)}
