-- Ask: a dispatcher incarnation is to tell who its runners are, and what they run.
-- key     owners  zset  owners
-- channel mail    mail:<owner>
-- arg     owner   text
-- arg     word    text  what the answer will begin with
-- return  asked | gone
if not redis.call('ZSCORE', owners, owner) then return 'gone' end
redis.call('PUBLISH', mail .. owner, 'roster ' .. word)
return 'asked'
