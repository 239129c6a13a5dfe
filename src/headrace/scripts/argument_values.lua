-- Argument values: the value of an argument, as it stands in names of keys, read from the stored arguments.
-- lazy    limiting
-- The position behind the MessagePack value at one: values that Lua cannot read are passed over, too.
local function behind_value(data, at)
  local left = 1
  local function number(bytes)
    local n = 0
    for i = at, at + bytes - 1 do n = n * 256 + string.byte(data, i) end
    at = at + bytes
    return n
  end
  while left > 0 do
    local b = string.byte(data, at)
    left, at = left - 1, at + 1
    if b >= 0x80 and b < 0x90 then left = left + (b - 0x80) * 2
    elseif b >= 0x90 and b < 0xa0 then left = left + b - 0x90
    elseif b >= 0xa0 and b < 0xc0 then at = at + b - 0xa0
    elseif b >= 0xc4 and b <= 0xc6 then local size = number(2 ^ (b - 0xc4)) at = at + size
    elseif b >= 0xc7 and b <= 0xc9 then local size = number(2 ^ (b - 0xc7)) at = at + size + 1
    elseif b >= 0xca and b <= 0xcb then at = at + 4 * (b - 0xc9)
    elseif b >= 0xcc and b <= 0xcf then at = at + 2 ^ (b - 0xcc)
    elseif b >= 0xd0 and b <= 0xd3 then at = at + 2 ^ (b - 0xd0)
    elseif b >= 0xd4 and b <= 0xd8 then at = at + 1 + 2 ^ (b - 0xd4)
    elseif b >= 0xd9 and b <= 0xdb then local size = number(2 ^ (b - 0xd9)) at = at + size
    elseif b >= 0xdc and b <= 0xdd then left = left + number(2 * (b - 0xdb))
    elseif b >= 0xde and b <= 0xdf then left = left + 2 * number(2 * (b - 0xdd)) end
  end
  return at
end

-- A text as it stands in names of keys: see headrace.model.limit_rules.value_name, which says the same.
local function value_name(text)
  text = string.gsub(text, '[^%w_.:/@+-]', function(c) return string.format('%%%02X', string.byte(c)) end)
  return #text <= 100 and text or redis.sha1hex(text)
end

local function packed_name(raw)
  local b = string.byte(raw)
  if b >= 0xa0 and b < 0xc0 then return value_name(string.sub(raw, 2)) end
  if b >= 0xd9 and b <= 0xdb then return value_name(string.sub(raw, 2 + 2 ^ (b - 0xd9))) end
  if b == 0xc0 then return '' end
  if b == 0xc2 or b == 0xc3 then return b == 0xc2 and 'false' or 'true' end
  if b < 0x80 or b >= 0xe0 or b >= 0xcc and b <= 0xd3 then
    local n = cmsgpack.unpack(raw)
    if math.abs(n) < 2 ^ 53 then return string.format('%.0f', n) end
  end
  return redis.sha1hex(raw)
end

local function json_name(value)
  if type(value) == 'string' then return value_name(value) end
  if type(value) == 'boolean' then return tostring(value) end
  if type(value) == 'number' and value == math.floor(value) and math.abs(value) < 2 ^ 53 then
    return string.format('%.0f', value)
  end
  return (value == nil or value == cjson.null) and '' or redis.sha1hex(cjson.encode(value))
end

-- The position behind the JSON value at one.
local function behind_json(text, at)
  local depth = 0
  repeat
    local c = string.sub(text, at, at)
    if c == '"' then
      local stop = string.find(text, '["\\]', at + 1)
      while string.sub(text, stop, stop) == '\\' do stop = string.find(text, '["\\]', stop + 2) end
      at = stop + 1
    elseif c == '[' or c == '{' then depth, at = depth + 1, at + 1
    elseif c == ']' or c == '}' then depth, at = depth - 1, at + 1
    elseif string.find(c, '[%s,:]') then at = at + 1
    else at = string.find(text, '[%s,:%]}]', at) or #text + 1 end
  until depth == 0
  return at
end

-- The text of one argument in JSON, by its position or else its name; nil where it is not found.
local function json_text(args, name, position)
  local at, n = string.find(args, '[', 2, true) + 1, 0
  while true do
    at, n = string.find(args, '[^%s,]', at), n + 1
    if string.sub(args, at, at) == ']' then break end
    local next_at = behind_json(args, at)
    if n == position then return string.sub(args, at, next_at - 1) end
    at = next_at
  end
  at = string.find(args, '{', at, true) + 1
  while true do
    at = string.find(args, '[^%s,]', at)
    if string.sub(args, at, at) == '}' then return nil end
    local key_end = behind_json(args, at)
    local value_at = string.find(args, '[^%s:]', key_end)
    local next_at = behind_json(args, value_at)
    if string.sub(args, at, key_end - 1) == '"' .. name .. '"' then return string.sub(args, value_at, next_at - 1) end
    at = next_at
  end
end

-- An integer beyond 53 bits as MessagePack has it: numbers of Lua, and so those of cjson, are rounded there.
local function packed_integer(digits)
  local bytes, negative = {0, 0, 0, 0, 0, 0, 0, 0}, string.sub(digits, 1, 1) == '-'
  for digit in string.gmatch(digits, '%d') do
    local carry = tonumber(digit)
    for i = 8, 1, -1 do
      carry = carry + bytes[i] * 10
      bytes[i], carry = carry % 256, math.floor(carry / 256)
    end
  end
  local carry = 1
  for i = 8, negative and 1 or 9, -1 do
    carry = carry + 255 - bytes[i]
    bytes[i], carry = carry % 256, math.floor(carry / 256)
  end
  return string.char(negative and 0xd3 or 0xcf, unpack(bytes))
end

-- The elements of an array or the pairs of a map at a position: their number, and where the first begins.
local function opened(data, at)
  local b = string.byte(data, at)
  if b < 0xa0 then return b % 16, at + 1 end
  local n, bytes = 0, (b == 0xdc or b == 0xde) and 2 or 4
  for i = at + 1, at + bytes do n = n * 256 + string.byte(data, i) end
  return n, at + 1 + bytes
end

-- The value of one argument, by its position or else its name; nil: it was not given. No arguments are an empty text.
local function argument(args, name, position)
  if args == '' then return nil end
  if string.byte(args) ~= 0x92 then
    local positions, keywords = unpack(cjson.decode(args))
    local value = positions[position]
    if value == nil then value = keywords[name] end
    if type(value) == 'number' and math.abs(value) >= 2 ^ 53 then
      local text = json_text(args, name, position)
      if text and string.find(text, '^-?%d+$') then return redis.sha1hex(packed_integer(text)) end
    end
    if value ~= nil then return json_name(value) end
    return nil
  end
  local count, at = opened(args, 2)
  for n = 1, count do
    local next_at = behind_value(args, at)
    if n == position then return packed_name(string.sub(args, at, next_at - 1)) end
    at = next_at
  end
  count, at = opened(args, at)
  for _ = 1, count do
    local value_at = behind_value(args, at)
    local next_at = behind_value(args, value_at)
    if packed_name(string.sub(args, at, value_at - 1)) == name then
      return packed_name(string.sub(args, value_at, next_at - 1))
    end
    at = next_at
  end
end
