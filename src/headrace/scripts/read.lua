-- Read: what is stored of some jobs, for handles and people: everything, or what a list shows.
-- include records
-- arg     ids        packed  at most 500
-- arg     most       int     longest arguments that are told, in bytes, and no results; 0: everything
-- route   each ids
-- return  {{id, due time or 0, {field, value, ...}}, ...}; see records.lua
return records(ids, most)
