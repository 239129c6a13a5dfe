-- Cancel: a waiting job ends as cancelled; a running one is asked to stop.
-- include withdraw
-- removes first scheduled
-- arg     ttl        int   microseconds that the cancelled job stays
-- route   of id
-- return  cancelled | asked | missing | the final state it is in already
return withdraw(id, ttl)
