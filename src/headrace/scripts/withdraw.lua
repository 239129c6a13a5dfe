-- Withdraw: a waiting job ends as cancelled; a running one is asked to stop. Included, never run alone.
-- include finish take_out
-- Returns cancelled | asked | missing | the state in which there is nothing to cancel.
local function withdraw(id, ttl)
  local f = redis.call('HMGET', job .. id, 'st', 'queue', 'task', 'owner')
  local state = f[1]
  if not state then return 'missing' end
  if state == 'running' then naming().ask_to_stop(id, f[4]) return 'asked' end
  if state == 'blocked' then
    -- Its end would free its children, and nothing starts in a workflow that has ended or that is undone.
    local f = is_node(id) and graph().touch(flow_of(id))
    if f and (graph().is_over(f) or f.undoing and not f.cancel) or not graph().is_part(id) then return state end
  end
  if not naming().take_out(id, state, f[2], f[3]) then return state end
  finish(id, 'cancelled', '{"type":"Cancelled","message":"cancelled before it started"}', ttl)
  return 'cancelled'
end
