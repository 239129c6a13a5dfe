-- Enqueue: new jobs are stored, and become ready or scheduled; each request makes its jobs once.
-- include accept
-- route   desk
-- return  ok | {full, {limit, its backlog, jobs that wait}} | 'ok | repeated <id> <id> ...': of those that were not
--         stored, each with the job that its request id had made
return accept()
