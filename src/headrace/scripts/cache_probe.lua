-- Cache probe: a key is written and removed, so that its readers must hear of that.
-- keys    probe:<link>
-- arg     link   text    names the connection that asks
-- route   home
-- return  ok
-- A full server lets this pass, since a removal comes first.
redis.call('UNLINK', probe)
redis.call('SET', probe, '1', 'PX', 5000)
redis.call('UNLINK', probe)
return 'ok'
