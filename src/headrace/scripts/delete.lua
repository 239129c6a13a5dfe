-- Delete: a job that does not run leaves with all that is stored of it; those who wait for it hear that it was
-- cancelled.
-- include discard
-- removes first scheduled
-- arg     id  text
-- route   of id
-- return  deleted | missing | node: its workflow is deleted as a whole | broadcast: its worker's alone | running
return discard(id)
