-- Bulk piece: a bulk operation does its next piece; its job, if it has one, is stored with how far it is.
-- include bulk retry_job withdraw telling
-- removes first expires
-- arg     id       text    the job; empty: a program does the pieces itself
-- arg     request  text    names the operation: a job that it has retried is not retried again
-- arg     verb     text    retry, cancel or delete
-- arg     bound    int     no job that came to its state later; microseconds
-- arg     ttl      int     microseconds that a cancelled job stays
-- arg     most     int     jobs that are done at most; 0: any number
-- arg     told     text    what the piece before has returned; empty: this is the first one
-- route   desk
-- return  packed: {1 at the end, looked at, done, {reason, refused, ...}, {score, id and lane of the last job}}
local VERBS = {
  retry = function(one) return retry_job(one, request) end,
  cancel = function(one) return withdraw(one, ttl) end,
  delete = function(one) return discard(one) end,
}
local DONE = {retried = true, cancelled = true, asked = true, deleted = true}
-- Jobs of a piece whose errors must be read.
local FEW = 100

-- A start that follows another one goes on where that was killed.
if id ~= '' then told = redis.call('HGET', job .. id, 'bulk') or told end
local progress = told ~= '' and cmsgpack.unpack(told) or {0, 0, 0, {}, {'', '', ''}}
local _, looked, done, refused, cursor = unpack(progress)
if progress[1] == 1 then return told end
local found, some, last = pick(bound, cursor[1], cursor[2], cursor[3],
  which[5] ~= '' and math.min(limit, FEW) or limit, most > 0 and most or nil)
local reasons = {}
for n = 1, #refused, 2 do reasons[refused[n]] = refused[n + 1] end
for _, one in ipairs(found) do
  -- Scripts do not roll back: an unreadable record must not hold up the others.
  local read, word = pcall(VERBS[verb], one)
  if read and DONE[word] then done = done + 1
  else
    local reason = read and string.match(word, '^%a+') or 'unreadable'
    reasons[reason] = (reasons[reason] or 0) + 1
  end
end
local flat = {}
for reason, count in pairs(reasons) do flat[#flat + 1], flat[#flat + 2] = reason, count end
told = cmsgpack.pack({last and 0 or 1, looked + some, done, flat, last or {'', '', ''}})
if id ~= '' and redis.call('EXISTS', job .. id) == 1 then
  redis.call('HSET', job .. id, 'bulk', told)
  if not last then telling().happened('bulk_ended', {'bulk', id, 'verb', verb, 'text', done .. ' done'}) end
end
return told
