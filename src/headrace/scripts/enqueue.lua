-- Enqueue: new jobs are stored, and become ready or scheduled; each request makes its jobs once.
-- include accept
-- route   desk
-- return  as accept says
return accept()
