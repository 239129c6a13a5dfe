-- Stats_children: the labels right below one, as long as something counted under them is kept; the last to end first.
-- clock   now
-- key     children  zset  stat-sub:<label>
-- arg     label     text  the parent after a slash
-- arg     offset    int   labels to pass over
-- arg     limit     int   at most 1000
-- return  {part, ...}
return redis.call('ZRANGE', children, '+inf', '(' .. math.floor(now / 1000000), 'BYSCORE', 'REV', 'LIMIT', offset, limit)
