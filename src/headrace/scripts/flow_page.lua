-- Page: workflows with their records, a bounded piece at a time, by creation.
-- include slice
-- keys    line=flows:<view> lapses flow broken job
-- arg     view    text  definition|state
-- arg     after   text  cursor: score of the last id seen, or empty
-- arg     member  text  cursor: the last id seen
-- arg     offset  int   workflows to pass over
-- arg     limit   int   at most 500
-- arg     desc    int   1: newest first
-- arg     low     text  least time of creation, such as -inf
-- arg     high    text  greatest
-- route   all
-- return  {count, {id, score, ...} of the index, names of fields, {{id, end of retention or 0, facts of the first
--         broken node, values}, ...}}
-- Each is searched for in each row, so the last two are read of what runs only: elsewhere the state says as much.
local FIELDS = {'definition', 'st', 'created', 'started', 'finished', 'total', 'active', 'succeeded', 'failed',
  'cancelled', 'quarantined', 'skipped', 'key', 'ttl', 'cancel', 'undoing'}
local common = #FIELDS - 2
local size, seen = slice(line, after, member, offset, limit, desc, low, high)
local rows = {}
for n = 1, #seen, 2 do
  local id = seen[n]
  local values = redis.pcall('HMGET', flow .. id, unpack(FIELDS, 1, common))
  if not values.err and values[2] then
    if values[2] == 'running' then
      local more = redis.call('HMGET', flow .. id, unpack(FIELDS, common + 1))
      values[common + 1], values[common + 2] = more[1], more[2]
    end
    local ended = values[2] ~= 'running'
    local first = (values[9] or values[10] or values[11]) and redis.call('ZRANGE', broken .. id, 0, 0)[1]
    rows[#rows + 1] = {id, ended and redis.call('ZSCORE', lapses, id) or 0,
      first and redis.call('HGET', job .. first, 'facts') or '', values}
  else
    -- Its record is gone: the row is dropped, the page goes on.
    redis.call('ZREM', line, id)
  end
end
return {size, seen, FIELDS, rows}
