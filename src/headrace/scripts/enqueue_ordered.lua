-- Enqueue: as enqueue, with ordered jobs among them: one of a key lines up, the others wait until it has ended. Jobs
-- that follow others wait for the ends of these: as key of a batch they have {1 or 0, id, ...}, see after.
-- include accept turn after
-- route   desk
-- return  as accept says
return accept(turns, nil, nil, nil, following)
