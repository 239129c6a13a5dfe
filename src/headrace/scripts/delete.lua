-- Delete: a job that does not run leaves with all that is stored of it; for those who wait for it it was cancelled.
-- include withdraw
-- removes first scheduled
-- route   of id
-- return  deleted | missing | node: its workflow is deleted as a whole | broadcast: its worker's alone | running
return discard(id)
