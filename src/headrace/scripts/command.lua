-- Command: a live incarnation hears a word at once, or it is not sent.
-- keys    owners mail
-- arg     owner   text
-- arg     word    text  such as scale:process:8
-- route   home
-- return  told | silent: it lives, and does not listen just now | gone
local ends = redis.call('ZSCORE', owners, owner)
if not ends or tonumber(ends) <= now then return 'gone' end
return redis.call('PUBLISH', mail .. owner, word) > 0 and 'told' or 'silent'
