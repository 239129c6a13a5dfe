-- Cache delete: values go, and whoever computes one of them now may not store it any more.
-- include cache_forget
-- arg     names    packed  {name, ...}, at most 1000
-- return  how many there were
local count = 0
for _, one in ipairs(names) do count = count + forget(one) end
return count
