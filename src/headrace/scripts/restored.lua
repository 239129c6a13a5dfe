-- Restored: workers may claim again from a store that was put back to an old copy, once an operator has decided.
-- keys    copy
-- arg     go      int   1: they may; 0: look only
-- route   all
-- return  microseconds that were lost; 0: it was not put back
local lost = redis.call('HGET', copy, 'lost')
if go == 1 then redis.call('UNLINK', copy) end
return tonumber(lost or 0)
