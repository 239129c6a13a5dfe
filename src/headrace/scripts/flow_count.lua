-- Count: how many workflows a view has.
-- keys    line=flows:<view>
-- arg     view    text  definition|state
-- route   all
-- return  the number
return redis.call('ZCARD', line)
