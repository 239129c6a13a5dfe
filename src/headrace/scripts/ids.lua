-- Ids: what an id says of itself, see model/ids.py. Of 21 characters the first 15 are a workflow's and its nodes'
-- alike, four are a node's number, and the 20th says which kind of job it is. A plain job is neither a node nor ordered
-- nor unique, as most are: this is one look instead of three.
local function is_plain(id) return (string.byte(id, 20) or 0) < 52 end
local function is_node(id) return (string.byte(id, 20) or 0) >= 103 and string.sub(id, 16, 19) ~= '0000' end
local function is_ordered(id) local digit = string.byte(id, 20) or 0 return digit > 55 and digit < 103 end
local function is_unique(id)
  local digit = string.byte(id, 20) or 0
  return digit > 51 and digit < 56 or digit > 98 and digit < 103
end
local function flow_of(id) return string.sub(id, 1, 15) .. '0000' .. string.sub(id, 20, 21) end
local function node_of(id, code) return string.sub(id, 1, 15) .. code .. string.sub(id, 20, 21) end
local function code_of(number, digits)
  local code = ''
  for _ = 1, digits or 4 do
    local digit = number % 32 + 1
    code = string.sub('0123456789abcdefghjkmnpqrstvwxyz', digit, digit) .. code
    number = math.floor(number / 32)
  end
  return code
end
local function number_of(id, first, last)
  local sum = 0
  for n = first or 16, last or 19 do
    sum = sum * 32 + (string.find('0123456789abcdefghjkmnpqrstvwxyz', string.sub(id, n, n), 1, true) or 1) - 1
  end
  return sum
end
