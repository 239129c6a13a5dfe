-- Changed: callers that read the changes of a job hear that it has changed.
-- till: what its record says: until when its changes are read.
-- keys    done
-- lazy    naming changed
local function changed(id, till)
  if (tonumber(till) or 0) > now then redis.call('PUBLISH', done .. id, '~') end
end
