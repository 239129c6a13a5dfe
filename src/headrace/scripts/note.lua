-- Note: progress and log lines of running jobs are stored, if the start that sent them is still the newest.
-- key     claims  zset    claims:<owner>
-- derive  job     hash    job:<id>
-- derive  log     list    log:<id>
-- arg     owner   text
-- arg     notes   packed  {id, token, progress or '', text, {line, ...}} each, at most 1000
-- arg     most    int     lines kept a job; the oldest go first
-- return  notes stored
local stored = 0
for _, note in ipairs(notes) do
  local id, token, progress, text, lines = unpack(note)
  local held = redis.call('ZSCORE', claims, id)
  if held and tonumber(held) == token then
    if progress ~= '' then redis.call('HSET', job .. id, 'progress', progress, 'note', text) end
    if #lines > 0 then
      for first = 1, #lines, 1000 do
        redis.call('RPUSH', log .. id, unpack(lines, first, math.min(first + 999, #lines)))
      end
      redis.call('LTRIM', log .. id, -most, -1)
    end
    stored = stored + 1
  end
end
return stored
