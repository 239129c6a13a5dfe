-- Stacks read: what an incarnation's runners were doing when they were asked last.
-- keys    stacks:<owner>
-- route   home
-- return  JSON, or empty
return redis.call('GET', stacks) or ''
