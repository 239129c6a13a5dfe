-- Errand bite: the program that began an errand does the next piece of it; workers do pieces with their background
-- work.
-- include bite
-- removes first chores
-- commit  batch
-- arg     id     text
-- arg     limit  int   jobs that are looked at, at most 1000
-- return  {field, value, ...} of the errand
bite(id, limit)
return function() return redis.call('HGETALL', of .. id) end
