-- Enqueue: as enqueue, with ordered jobs among them: one of a key lines up, the others wait until it has ended.
-- include accept
-- include turn
-- key     seen       string  sender:<sender>    number of this sender's last request
-- key     asked      string  request:<request>  the job that a request id made; unused when request is empty
-- arg     sender     text    a producer's slot; its requests come one after another
-- arg     number     text    number of the request; the same again means: the reply was lost
-- arg     request    text    the user's request id, or empty
-- arg     dedupe     int     milliseconds that a request id is remembered
-- arg     head       text    the first job's id
-- arg     batches    packed  {{queue, priority, delay, at, expires, {field, value, ...}, key}, {id, args, ...}} each; microseconds. The key of ordered jobs, else none
-- return  {ok} | {repeated} | {duplicate, id}
local answer = accept(turns().take)
line_up_all()
return answer
