-- Unique rows: what becomes of unique jobs that enqueue_unique does not store at once.
-- include unique_store
-- lazy    naming store_by_rule clashes_of
-- keys    asked=request
-- batch   wishes  nil     by job: its request id, once asked for
local function wishes()
  if batch.wishes then return batch.wishes end
  local at, found = 0, {}
  for _, one in ipairs(#requests > 0 and batches or {}) do
    for n = 1, #one[2], 2 do
      at = at + 1
      if requests[at] ~= '' then found[one[2][n]] = requests[at] end
    end
  end
  batch.wishes = found
  return found
end

-- The rows of a batch from first on; into twice go those not stored, each with the job that stands for it.
local function store_by_rule(one, first, twice, limits)
  local head, rows, names = unpack(one)
  batch.limits = limits
  for n = first, #rows, 2 do
    local id = rows[n]
    local holder = store_named(id, names[(n + 1) / 2], rows[n + 1], head)
    if holder then
      twice[#twice + 1], twice[#twice + 2] = id, holder
      local wish = wishes()[id]
      if wish then redis.call('SET', asked .. wish, holder, 'PX', request_id_ttl) end
    end
  end
end

-- Of jobs whose rule refuses the call when their names are taken: {job, the one that has its name, ...}.
local function clashes_of()
  local found, met = {}, {}
  for _, one in ipairs(batches) do
    local rule, rows, names = one[1][8], one[2], one[3]
    for n = 1, rule and rule ~= true and rule[2] == 'raise' and #rows or 0, 2 do
      local id, name = rows[n], names[(n + 1) / 2]
      local wish = wishes()[id]
      -- What its request id made before is not made again, and clashes with nothing.
      if not wish or redis.call('EXISTS', asked .. wish) == 0 then
        local holder = met[name] or holder_of(name)
        if holder then found[#found + 1], found[#found + 2] = id, holder end
        met[name] = met[name] or id
      end
    end
  end
  return found
end
