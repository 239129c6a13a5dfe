-- Stacks read: what an incarnation's runners were doing when they were asked last.
-- key     stacks  string  stacks:<owner>
-- arg     owner   text
-- route   home
-- return  JSON, or empty
return redis.call('GET', stacks) or ''
