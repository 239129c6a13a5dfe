-- Telling: what failed or changed is told as an event, to those who follow.
-- What succeeds tells nothing. All of this is made at first use, so that a script that tells nothing pays nothing.
-- lazy    telling happened at_home ended_badly cause_of store_causes
-- keys    events causes floods job cause_at=cause
-- batch   tells   nil     whether this script has told something
-- batch   causes  {}      causes that this script has seen: how many failures, newest ids, what they have in common
-- batch   floods  {}      how many failures of each of them there were in this minute
-- Seconds that a stream and a cause are kept; microseconds after which a cause is back; the most causes.
local WEEK, MONTH, DAY, MOST_CAUSES = 604800, 2592000, 86400000000, 1000
-- This many failures of one cause have an event each in a minute; of more the 1,000th has one, the 10,000th and so on.
local FEW, MINUTE = 100, 60000000
-- Letters of the ids of a cause's newest failures, about 20.
local RECENT = 440

-- Fields by turns with their values.
local function happened(kind, fields)
  redis.call('XADD', events, 'MAXLEN', '~', 10000, '*', 'kind', kind, unpack(fields))
  if not batch.tells then redis.call('EXPIRE', events, WEEK) end
  batch.tells = true
end

-- What happens on all shards is told by the first.
local function at_home(kind, fields)
  local home = string.sub(prefix, -4) == ':0}:'
  if home then happened(kind, fields) end
  return home
end

local function text_of(value) return type(value) == 'string' and value or '' end

-- A traceback is the most of an error, and tells nothing of its cause: it is cut out before the rest is decoded. Within
-- a text of JSON no quotation mark stands without a backslash, so these are where it begins and ends.
local function without_traceback(data)
  local from = string.find(data, '","traceback":"', 1, true)
  local to = from and string.find(data, '","attempt":', from + 15, true)
  return to and string.sub(data, 1, from) .. string.sub(data, to + 1) or data
end

-- Name of a failure's cause, as model/job_record.py has it, the first line of its error, its kind, where it happened.
local function cause_of(task, data)
  local read, e = pcall(cjson.decode, without_traceback(data))
  if not read or type(e) ~= 'table' then e = {} end
  local kind, message, where = text_of(e.type), text_of(e.message), ''
  local line = string.match(message, '^[^\r\n]*')
  if type(e.signal) == 'number' then
    kind = 'signal ' .. e.signal
  else
    where = string.gsub(text_of(e.where), ':%d+ in ', ' in ')
    if where == '' then where = string.gsub(string.gsub(string.sub(message, 1, 80), '0x[0-9a-f]+', '#'), '%d+', '#') end
  end
  line = text_of(e.type) .. (line ~= '' and ': ' .. line or '')
  return string.sub(redis.sha1hex(task .. '\n' .. kind .. '\n' .. where), 1, 16), string.sub(line, 1, 200), kind, where
end

-- How many failures of a cause there were in this minute, this one included.
local function flood_of(cause)
  local minute, count = string.format('%.0f', math.floor(now / MINUTE)), batch.floods[cause]
  if not count then
    local at, known = string.match(redis.call('HGET', floods, cause) or '', '^(%d+) (%d+)$')
    count = at == minute and tonumber(known) or 0
    if redis.call('HLEN', floods) > MOST_CAUSES then redis.call('UNLINK', floods) end
  end
  batch.floods[cause] = count + 1
  redis.call('HSET', floods, cause, minute .. ' ' .. count + 1)
  if count == 0 then redis.call('EXPIRE', floods, 120) end
  return count + 1
end

-- What this script has counted of each cause. The caller runs it at the end.
local function store_causes()
  for cause, c in pairs(batch.causes) do
    local key = cause_at .. cause
    if redis.call('HINCRBY', key, 'number', c.number) == c.number then
      redis.call('HSET', key, 'first', now, unpack(c.facts))
    end
    local recent = c.recent ~= '' and string.sub(c.recent .. (redis.call('HGET', key, 'recent') or ''), 1, RECENT)
    redis.call('HSET', key, 'last', now, 'state', c.state, unpack(recent and {'recent', recent} or {}))
    redis.call('EXPIRE', key, MONTH)
  end
  batch.causes = {}
end

-- A job failed for good, or is quarantined.
local function ended_badly(id, state, data)
  local f = redis.pcall('HMGET', job .. id, 'task', 'queue')
  local task = f[1] or ''
  local cause, line, kind, where = cause_of(task, data)
  local fields = {'job', id, 'task', task, 'queue', f[2] or 'default', 'cause', cause, 'error', line}
  local flood = flood_of(cause)
  if flood > FEW then fields[#fields + 1], fields[#fields + 2] = 'count', flood end
  if flood <= FEW or string.find(string.format('%.0f', flood), '^10*$') then happened(state, fields) end
  local met = batch.causes[cause]
  local c = met or {number = 0, recent = '', facts = {'task', task, 'kind', kind, 'where', where, 'line', line}}
  batch.causes[cause], c.number, c.state = c, c.number + 1, state
  if flood <= FEW then c.recent = string.sub(id .. ' ' .. c.recent, 1, RECENT) end
  if met then return end
  local last = tonumber(redis.call('ZSCORE', causes, cause) or 0)
  redis.call('ZADD', causes, now, cause)
  redis.call('EXPIRE', causes, MONTH)
  if last == 0 then
    for _, old in ipairs(redis.call('ZRANGE', causes, 0, -MOST_CAUSES - 1)) do
      redis.call('ZREM', causes, old)
      redis.call('UNLINK', cause_at .. old)
    end
    happened('cause_new', fields)
  elseif now - last > DAY then
    fields[#fields + 1], fields[#fields + 2] = 'last', string.format('%.0f', last)
    happened('cause_back', fields)
  end
end
