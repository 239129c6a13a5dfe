-- Read: everything stored of some jobs, for handles and people.
-- key     scheduled  zset    scheduled
-- derive  job        hash    job:<id>
-- derive  ready      zset    ready:<queue>
-- arg     ids        packed  at most 500
-- return  {{id, due time or 0, {field, value, ...}}, ...}; a job that is not stored has no fields
local found = {}
for n, id in ipairs(ids) do
  local fields = redis.pcall('HGETALL', job .. id)
  local due = 0
  if fields.err then
    fields = {'state', 'quarantined', 'error', '{"type":"Corrupt","message":"the key of its record holds another type"}'}
  else
    for m = 1, #fields, 2 do
      if fields[m] == 'state' and fields[m + 1] == 'scheduled' then due = redis.call('ZSCORE', scheduled, id) or 0 end
      if fields[m] == 'state' and fields[m + 1] == 'ready' then
        due = redis.call('ZSCORE', ready .. (redis.call('HGET', job .. id, 'queue') or 'default'), id) or 0
      end
    end
  end
  found[n] = {id, due, fields}
end
return found
