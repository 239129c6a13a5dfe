-- Server info: what the server says of itself. Where the access rules do not allow the question nothing is told.
-- route   home
-- return  the text of INFO, or nothing
local said = redis.pcall('INFO')
return type(said) == 'table' and (said.ok or '') or said
