-- Cache release: nothing came of computing a value; the lease ends, and callers that wait for the value hear of it.
-- keys    value=cache:<name> filling:<name>
-- arg     lease    text    number from cache_lease
-- route   home
-- return  released | gone
if string.match(redis.call('GET', filling) or '', '^%d+') ~= lease then return 'gone' end
-- A full server lets this pass, since a removal comes first.
redis.call('UNLINK', filling)
-- Those who wait hear of the value's key only.
if redis.call('SET', value, '', 'NX', 'PX', 1000) then redis.call('UNLINK', value) end
return 'released'
