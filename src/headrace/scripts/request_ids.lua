-- Request ids: which jobs they made, so that a request that comes twice makes them once.
-- lazy    request_ids unmade refuse
-- keys    job asked=request
-- The job that a request id made, or the one of this very id, which stays. Else the request id names this one from now.
local function made_by(wish, id)
  local earlier = redis.call('GET', asked .. wish) or redis.call('EXISTS', job .. id) == 1 and id
  if not earlier then redis.call('SET', asked .. wish, id, 'PX', request_id_ttl) end
  return earlier
end

-- What is left of the batches when those jobs are taken out whose request ids made one before.
local function unmade(repeated)
  local left, twice, at = {}, {}, 0
  for _, batch in ipairs(batches) do
    local rows, names = {}, batch[3] and {}
    for n = 1, #batch[2], 2 do
      local id, wish = batch[2][n], requests[at + 1]
      local earlier = wish ~= '' and made_by(wish, id)
      if not earlier then
        if names then names[#names + 1] = batch[3][(n + 1) / 2] end
        rows[#rows + 1], rows[#rows + 2] = id, batch[2][n + 1]
      elseif earlier ~= id or not repeated then
        -- Also of a repeat: the lost reply may have been the one that named another job.
        twice[#twice + 1], twice[#twice + 2] = id, earlier
      end
      at = at + 1
    end
    if #rows > 0 then left[#left + 1] = {batch[1], rows, names} end
  end
  return left, twice
end

-- As if this request had not come, so that it may come again.
local function refuse(why, left, before)
  if before then redis.call('SET', seen, before, 'EX', 600) else redis.call('UNLINK', seen) end
  local ids, at = {}, 0
  for _, batch in ipairs(left) do
    for n = 1, #batch[2], 2 do ids[batch[2][n]] = true end
  end
  for _, batch in ipairs(#requests > 0 and batches or {}) do
    for n = 1, #batch[2], 2 do
      at = at + 1
      if requests[at] ~= '' and ids[batch[2][n]] then redis.call('UNLINK', asked .. requests[at]) end
    end
  end
  return {'full', why}
end
