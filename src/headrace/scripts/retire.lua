-- Retire: an incarnation that holds nothing any more leaves.
-- key     owners   zset  owners
-- key     self     hash  owner:<owner>
-- key     claims   zset  claims:<owner>
-- key     cancels  set   cancels:<owner>
-- arg     owner    text
-- return  ok | busy
if redis.call('EXISTS', claims) == 1 then return 'busy' end
redis.call('ZREM', owners, owner)
redis.call('UNLINK', self, cancels)
return 'ok'
