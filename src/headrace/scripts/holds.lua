-- Holds: what the store knows of an incarnation: its last numbered requests, and what it has claimed, a page at a time.
-- keys    self=owner:<owner> claims:<owner>
-- arg     after   int     only starts with a larger token
-- arg     limit   int     most starts, at most 1000
-- route   desk
-- return  {number of its last claim, first token of that, number of its last settle, {id, token, ...}} | {}: unknown
local known = redis.call('HMGET', self, 'since', 'request', 'first', 'settled')
if not known[1] then return {} end
local page = redis.call('ZRANGEBYSCORE', claims, string.format('(%.0f', after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
return {tonumber(known[2] or 0), tonumber(known[3] or 0), tonumber(known[4] or 0), page}
