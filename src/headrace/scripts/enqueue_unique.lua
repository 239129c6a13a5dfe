-- Enqueue: as enqueue, with unique jobs among them: one whose name another job has is not stored, or the whole call is refused.
-- include accept
-- include turn
-- include unique_store
-- commit  batch
-- key     seen     string  sender:<sender>  number of this sender's last request, and what else than ok was answered
-- arg     sender   text    a producer's slot; its requests come one after another
-- arg     number   text    number of the request; the same again means: the reply was lost
-- arg     requests packed  the request id of each job, or empty; {} when no job has one
-- arg     request_id_ttl   int     milliseconds that a request id is remembered
-- arg     batches  packed  as of enqueue; behind the key of ordered jobs, false for none, {hold, clash, microseconds} of unique ones, and behind their rows {name, ...}
-- return  ok | {full, ...} as of enqueue | 'ok | repeated <id> <id> ...': of those that were not stored, each with the job that has its name or request id | 'clash <id> <id> ...': none is stored; with the jobs that have their names
local before = redis.call('SET', seen, number, 'EX', 600, 'GET')
-- A repeat is answered alike, though names may have changed hands.
if before and #before > #number and string.sub(before, 1, #number + 1) == number .. '|' then
  redis.call('SET', seen, before, 'EX', 600)
  return string.sub(before, #number + 2)
end

local at, wished, clashes, met = 0, {}, {}, {}
for _, batch in ipairs(batches) do
  local rule, rows = batch[1][8], batch[2]
  local raises = rule and rule[2] == 'raise' and before ~= number
  for n = 1, (raises or #requests > 0) and #rows or 0, 2 do
    local id, wish = rows[n], requests[at + (n + 1) / 2] or ''
    wished[id] = wish ~= '' and wish
    -- What this request has stored, or its request id made before, is not made again, and clashes with nothing.
    if raises and (wish == '' or redis.call('EXISTS', asked .. wish) == 0) then
      local name = batch[3][(n + 1) / 2]
      local holder = met[name] or holders().holder_of(name)
      if holder then clashes[#clashes + 1], clashes[#clashes + 2] = id, holder end
      met[name] = met[name] or id
    end
  end
  at = at + #rows / 2
end

local function store_unique(left, twice, limits)
  local rest = {}
  batch.limits = limits
  for _, one in ipairs(left) do
    local head, rows, names = unpack(one)
    if not names then rest[#rest + 1] = one end
    for n = 1, names and #rows or 0, 2 do
      local id = rows[n]
      local holder = store_named(id, names[(n + 1) / 2], rows[n + 1], head)
      if holder then
        twice[#twice + 1], twice[#twice + 2] = id, holder
        if wished[id] then redis.call('SET', asked .. wished[id], holder, 'PX', request_id_ttl) end
      end
    end
  end
  return rest
end

local reply = #clashes > 0 and 'clash ' .. table.concat(clashes, ' ') or accept(turns, store_unique, before)
if type(reply) == 'string' and reply ~= 'ok' and before ~= number then redis.call('APPEND', seen, '|' .. reply) end
return reply
