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
-- arg     batches  packed  as of enqueue; behind the key of ordered jobs, false for none, {hold, clash, microseconds} of unique ones
-- arg     names    packed  the name of each job, or empty
-- return  ok | {ok | repeated, {id, the job that has its name or request id, ...} of those that were not stored} | {clash, {id, job that has its name, ...}}: none is stored
local before = redis.call('GET', seen)
if before and string.sub(before, 1, #number + 1) == number .. '|' then return cmsgpack.unpack(string.sub(before, #number + 2)) end

local named, wished, at, clashes, met = {}, {}, 0, {}, {}
for _, batch in ipairs(batches) do
  local rule = batch[1][8]
  for n = 1, rule and #batch[2] or 0, 2 do
    local id, name, wish = batch[2][n], names[at + (n + 1) / 2], requests[at + (n + 1) / 2] or ''
    named[id], wished[id] = name, wish
    -- What this request has stored, or its request id made before, is not made again, and clashes with nothing.
    if rule[2] == 'raise' and before ~= number and (wish == '' or redis.call('EXISTS', asked .. wish) == 0) then
      local holder = met[name] or uniques().holder_of(name)
      if holder then clashes[#clashes + 1], clashes[#clashes + 2] = id, holder end
      met[name] = met[name] or id
    end
  end
  at = at + #batch[2] / 2
end

local function store_unique(left, twice)
  local rest = {}
  for _, batch in ipairs(left) do
    for n = 1, batch[1][8] and #batch[2] or 0, 2 do
      local id = batch[2][n]
      local holder = store_named(id, named[id], batch[2][n + 1], batch[1])
      if holder then
        twice[#twice + 1], twice[#twice + 2] = id, holder
        if wished[id] ~= '' then redis.call('SET', asked .. wished[id], holder, 'PX', request_id_ttl) end
      end
    end
    if not batch[1][8] then rest[#rest + 1] = batch end
  end
  return rest
end

local function in_turn(key, line) return turns().take(key, line) end

local reply = #clashes > 0 and {'clash', clashes} or accept(in_turn, store_unique)
-- A repeat is answered alike, though names may have changed hands.
if type(reply) == 'table' and reply[1] ~= 'repeated' then redis.call('SET', seen, number .. '|' .. cmsgpack.pack(reply), 'EX', 600) end
return reply
