-- Stacks tell: what an incarnation's runners are doing, as a caller asked; kept for a minute.
-- keys    stacks:<owner>
-- arg     text    text    JSON, at most 64 KiB
-- route   desk
-- return  ok
-- What goes first lets a server whose memory is full pass the rest: else the worker would ask again and again.
redis.call('UNLINK', stacks)
redis.call('SET', stacks, text, 'EX', 60)
return 'ok'
