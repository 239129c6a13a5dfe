-- Delete: a workflow leaves with all that it owns, in whatever state; outcomes of nodes that still run are refused.
-- include drop
-- arg     id      text
-- return  ok | missing
local found = drop_flow(id)
finish_all()
return found and 'ok' or 'missing'
