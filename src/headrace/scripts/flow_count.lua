-- Count: how many workflows a view has.
-- key     line    zset  flows:<view>
-- arg     view    text  definition|state
-- return  the number
return redis.call('ZCARD', line)
