-- Why, server: what keeps a server from storing anything. Included, never run alone.
-- Where the access rules do not allow the question nothing is told.
local TELLING = {'role', 'slave_read_only', 'master_link_status', 'maxmemory', 'used_memory', 'maxmemory_policy',
  'rdb_last_bgsave_status', 'aof_last_write_status', 'min_slaves_good_slaves'}
local function server_facts()
  local text, found = '', {}
  for _, section in ipairs({'memory', 'persistence', 'replication'}) do
    local said = redis.pcall('INFO', section)
    if type(said) == 'table' then said = said.ok or '' end
    text = text .. '\n' .. said
  end
  local bounded = not string.find(text, '\nmaxmemory:0\r', 1, true)
  for _, name in ipairs(TELLING) do
    local value = string.match(text, '\n' .. name .. ':([^\r\n]*)')
    if value and (bounded or not string.find(name, 'memory', 1, true)) then
      found[#found + 1], found[#found + 2] = name, value
    end
  end
  return found
end
