-- Delete: a workflow leaves with all that it owns, in whatever state; outcomes of nodes that still run are refused.
-- include drop
-- route   of id
-- return  ok | missing
return drop_flow(id) and 'ok' or 'missing'
