-- Stats_children: the labels right below one while anything under them counts, the last to end first; some buckets.
-- keys    children=stat-sub:<label> stat
-- arg     label     text    the parent after a slash
-- arg     offset    int     labels to pass over
-- arg     limit     int     at most 1000; with dates: 1000 buckets in all
-- arg     dates     packed  of buckets that are told, too; a label's all at one moment
-- route   home
-- return  {{part, ...}, {the fields and counts of each part and date as one text with a line each, ...}}
local parts = redis.call('ZRANGE', children, '+inf', '(' .. math.floor(now / 1000000), 'BYSCORE', 'REV', 'LIMIT',
  offset, limit)
local above, held = label == '/' and '' or string.sub(label, 2) .. '/', {}
for _, part in ipairs(parts) do
  for _, date in ipairs(dates) do
    held[#held + 1] = table.concat(redis.call('HGETALL', stat .. date .. ':' .. above .. part), '\n')
  end
end
return {parts, held}
