-- Bite: a bounded piece of an errand, which is a verb on many jobs. Included, never run alone.
-- include errand
-- include retry_job
-- include discard
-- include telling
-- clock   now
-- key     chores  zset  chores
-- key     errands zset  errands
-- derive  of      hash  errand:<id>
local VERBS = {
  retry = function(id, e) return retry_job(id, e.id) end,
  cancel = function(id, e) return withdraw(id, e.ttl) end,
  delete = function(id) return discard(id) end,
}
local DONE = {retried = true, cancelled = true, asked = true, deleted = true}
-- How long an errand is shown after its last piece, seconds; jobs of a piece whose errors must be read.
local SHOWN, FEW = 604800, 100

local function errand_of(id)
  local flat, e = redis.call('HGETALL', of .. id),
    {id = id, queue = '', task = '', key = '', cause = '', after = '', member = '', lane = ''}
  for n = 1, #flat, 2 do e[flat[n]] = flat[n + 1] end
  for _, name in ipairs({'bound', 'ttl', 'rate'}) do e[name] = tonumber(e[name]) or 0 end
  return e.verb and e
end

-- Returns how many jobs were looked at.
local function bite(id, limit)
  local e, next = errand_of(id), redis.call('ZSCORE', chores, 'errand:' .. id)
  if next and tonumber(next) > now then return 0 end
  redis.call('ZREM', chores, 'errand:' .. id)
  if not e or e.phase ~= 'running' then return 0 end
  if e.cause ~= '' then limit = math.min(limit, FEW) end
  -- What a second lets through, or a small errand would be done at once whatever its rate.
  local found, looked, last = pick(e, limit, e.rate > 0 and e.rate or nil)
  local done = 0
  for _, one in ipairs(found) do
    -- Scripts do not roll back: an unreadable record must not hold up the others.
    local read, word = pcall(VERBS[e.verb], one, e)
    if read and DONE[word] then done = done + 1
    else redis.call('HINCRBY', of .. id, 'refused:' .. (read and string.match(word, '^%a+') or 'unreadable'), 1) end
  end
  redis.call('HINCRBY', of .. id, 'looked', looked)
  local sum = redis.call('HINCRBY', of .. id, 'done', done)
  if last then
    local due = now + (e.rate > 0 and math.ceil(done / e.rate * 1000000) or 0)
    redis.call('HSET', of .. id, 'after', last[1], 'member', last[2], 'lane', last[3])
    redis.call('ZADD', chores, due, 'errand:' .. id)
  else
    redis.call('HSET', of .. id, 'phase', 'ended', 'ended', now)
    telling().happened('errand_ended', {'errand', id, 'verb', e.verb, 'text', sum .. ' done', 'who', e.who or ''})
  end
  redis.call('EXPIRE', of .. id, SHOWN)
  redis.call('EXPIRE', errands, SHOWN)
  return looked
end
