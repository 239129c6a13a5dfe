-- Enqueue: new jobs are stored, and become ready or scheduled; all of them but those whose request ids made one before or, when repeated, none.
-- include accept
-- key     seen     string  sender:<sender>  number of this sender's last request
-- arg     sender   text    a producer's slot; its requests come one after another
-- arg     number   text    number of the request; the same again means: the reply was lost
-- arg     requests packed  the request id of each job, or empty; {} when no job has one
-- arg     request_id_ttl   int     milliseconds that a request id is remembered
-- arg     batches  packed  {{queue, priority, delay, at, expires, {field, value, ...}, key}, {id, args, ...}} each; microseconds. The key of ordered jobs, else none
-- return  ok | {ok | repeated, {id, the job that its request id had made, ...} of those that were not stored}
return accept()
