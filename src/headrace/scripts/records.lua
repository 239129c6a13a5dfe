-- Records: what is stored of some jobs: everything, or what a list shows; the built-in ones, which lists leave out.
-- keys    scheduled job ready lane own
local function lean(key, most)
  local size = redis.pcall('HSTRLEN', key, 'args')
  if type(size) ~= 'number' then return size end
  if size <= most and redis.call('HEXISTS', key, 'result') == 0 then return redis.call('HGETALL', key) end
  local wanted, fields = {}, {}
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if name ~= 'result' and (name ~= 'args' or size <= most) then wanted[#wanted + 1] = name end
  end
  for n, value in ipairs(redis.call('HMGET', key, unpack(wanted))) do
    fields[2 * n - 1], fields[2 * n] = wanted[n], value
  end
  if size > most then
    fields[#fields + 1], fields[#fields + 2] = 'left_out', size
  end
  return fields
end

-- {{id, due time or 0, {field, value, ...}}, ...}; a job that is not stored has no fields. most: the longest arguments
-- that are told, in bytes, and no results; 0: everything; left_out: bytes of arguments that are not told.
local function records(ids, most)
  local found = {}
  for n, id in ipairs(ids) do
    local fields = most > 0 and lean(job .. id, most) or redis.pcall('HGETALL', job .. id)
    local due = 0
    if fields.err then
      fields = {'st', 'quarantined', 'error', '{"type":"Corrupt","message":"the key of its record holds another type"}'}
    else
      local f = {}
      for m = 1, #fields, 2 do f[fields[m]] = fields[m + 1] end
      if f.st == 'scheduled' then
        due = redis.call('ZSCORE', scheduled, id) or 0
      elseif f.st == 'ready' then
        due = redis.call('ZSCORE', ready .. (f.queue or 'default'), id)
          or f.lane and redis.call('ZSCORE', lane .. f.lane, id) or 0
      end
    end
    found[n] = {id, due, fields}
  end
  return found
end

-- Of the jobs of {id, score, ...}; none where they are not asked for.
local function records_of_rows(rows, most)
  local ids = {}
  for n = 1, most < 0 and 0 or #rows, 2 do ids[#ids + 1] = rows[n] end
  return records(ids, most)
end

-- The ids of built-in jobs, as keys of a table, and how many are in each state.
local function own_jobs()
  local ids, counts = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', own, 0, -1)) do
    local state = redis.pcall('HGET', job .. id, 'st')
    if type(state) == 'string' then ids[id], counts[state] = true, (counts[state] or 0) + 1 end
  end
  return ids, counts
end
