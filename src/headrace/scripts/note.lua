-- Note: progress and log lines of running jobs are stored, if the start that sent them is still the newest.
-- include held_gates changed
-- keys    self=owner:<owner> claims:<owner> log
-- removes first claims
-- arg     request int     number of the request, which grows: an earlier or equal one stores nothing; 0: not numbered
-- arg     notes   packed  {id, token, progress or '', text, {line, ...}, the exception that a middleware swallowed or
--                         '', {{limit, units}, ...} that it spent, JSON of its progress}, at most 1000; three may be
--                         left out
-- arg     most    int     lines kept a job; the oldest go first
-- route   desk
-- return  notes stored
local stored = 0
if request > 0 then
  local known = redis.call('HMGET', self, 'noted', 'since')
  -- Without its incarnation there is nothing that a note could belong to, and nothing that would end the mark.
  if (tonumber(known[1]) or 0) >= request or not known[2] then return 0 end
  redis.call('HSET', self, 'noted', request)
end
for _, note in ipairs(notes) do
  local id, token, progress, text, lines, swallowed, spent, data = unpack(note)
  local held = redis.call('ZSCORE', claims, id)
  -- A workflow may have been deleted under its running nodes.
  if held and tonumber(held) == token and redis.call('EXISTS', job .. id) == 1 then
    if progress ~= '' then
      redis.call('HSET', job .. id, 'progress', progress, 'note', text)
      redis.call('HINCRBY', job .. id, 'said', 1)
      if data and data ~= '' then redis.call('HSET', job .. id, 'data', data)
      else redis.call('HDEL', job .. id, 'data') end
      naming().changed(id, redis.call('HGET', job .. id, 'followed'))
    end
    if swallowed and swallowed ~= '' then redis.call('HSET', job .. id, 'swallowed', swallowed) end
    if spent then limiting().spend_held(owner, id, spent) end
    if #lines > 0 then
      -- The end of a job without this mark does not unlink its log: see finish.
      redis.call('HSET', job .. id, 'logged', 1, 'more', 1)
      rpush_all(log .. id, lines)
      redis.call('LTRIM', log .. id, -most, -1)
    end
    stored = stored + 1
  end
end
return stored
