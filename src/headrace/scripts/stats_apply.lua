-- Stats_apply: merged counts are added to their buckets, and their labels to the index.
-- keys    stat children=stat-sub
-- arg     buckets  packed  {date, end in seconds, {label, {field, n as text: it may be long, ...}, ...}} each
-- arg     index    packed  {parent, {end in seconds, part, ...}} each
-- A bucket's end is absolute, so that late counts do not prolong it; what has ended is not made again.
local function apply(buckets, index)
  local second, refused = math.floor(now / 1000000), {}
  for _, group in ipairs(buckets) do
    local date, ends, rows = group[1], group[2], group[3]
    for n = 1, ends > second and #rows or 0, 2 do
      local name, counts = stat .. date .. ':' .. rows[n], rows[n + 1]
      for m = 1, #counts, 2 do
        -- Scripts do not roll back: a counter that is full, or no number, must not stop the others.
        local sum = redis.pcall('HINCRBY', name, counts[m], counts[m + 1])
        if type(sum) == 'table' then refused[#refused + 1] = date .. ':' .. rows[n] .. ' ' .. counts[m] end
      end
      redis.call('EXPIREAT', name, ends)
    end
  end
  for _, row in ipairs(index) do
    local name, parts = children .. '/' .. row[1], row[2]
    zadd_gt_all(name, parts)
    redis.call('ZREMRANGEBYSCORE', name, '-inf', second)
    local last = redis.call('ZRANGE', name, -1, -1, 'WITHSCORES')[2]
    if last then redis.call('EXPIREAT', name, last) end
  end
  return refused
end
