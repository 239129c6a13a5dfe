-- Rerun: a finished job becomes ready again, with fresh budgets; its arguments and options are as they were.
-- include retry_job
-- arg     request      text  names this request: the same again, after a lost reply, changes nothing
-- route   of id
-- return  retried | missing | node | broadcast: its worker's alone | the state that does not allow it | taken <id>:
--         that job has its name; a node's workflow goes on from it, see flow_retry
return retry_job(id, request)
