-- Stats_event: something that happened is stored with what is known of it, and counted; once for each id.
-- include stats_apply
-- keys    event=stat-event:<id> events=stat-events
-- arg     at       int     when it happened, microseconds
-- arg     keep     int     seconds that it stays from then, or from now if that is later
-- arg     body     text    MessagePack
-- route   home
-- return  {ok | known, {counters that refused}}
if redis.call('EXISTS', event) == 1 then return {'known', {}} end
local second, happened = math.floor(now / 1000000), math.floor(at / 1000000)
-- However long ago it happened: its id must be known when it is told again. This comes first: once a script has
-- written, a server whose memory is full lets it write on, so it is all or nothing.
redis.call('SET', event, body, 'EXAT', math.max(happened, second) + keep)
if happened + keep > second then
  redis.call('ZADD', events, at, id)
  local last = redis.call('ZRANGE', events, -1, -1, 'WITHSCORES')[2]
  redis.call('EXPIREAT', events, math.floor(last / 1000000) + keep)
end
redis.call('ZREMRANGEBYSCORE', events, '-inf', now - keep * 1000000)
return {'ok', apply(buckets, index)}
