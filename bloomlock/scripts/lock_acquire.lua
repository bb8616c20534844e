-- Take a lock, or stand in its queue in the same step; goes on after lock_queue.lua.
-- KEYS: see lock_open.lua
-- ARGV: 1 group (empty: exclusive), 2 lease in ms, 3 1 if it may join its group past waiters,
--       4 1 if its channel is known to be heard, 5 token, 6 its record in the queue (empty: not
--       willing to wait)
-- Reply: {1, fence, 1 if a client waits behind} or {0, ms left of the holder's lease, 1 if it waits
--       and is heard, a number that fences of later grants exceed}
local function is_available(is_behind)
    local joinable = group ~= '' and value == '=' .. group
    if joinable and ARGV[3] == '1' then
        return true
    end
    return (joinable or not value) and not is_behind
end

value = forget(value)
if not value or value == token or group ~= '' then
    local waiters = call('EXISTS', KEYS[3])
    if is_available(waiters == 1) or holds(value, token, group) then
        return hold(value, token, group, lease_ms, waiters)
    end
end
if record ~= '' then
    enqueue()
end
if not value or group ~= '' then
    local granted, is_behind = promote(value, record)
    if granted[token] then
        -- Who is answered need not be announced to, and has the whole lease.
        set_lease(call('GET', KEYS[1]), token, group, lease_ms, true)
        return granted[token]
    end
    stored = call('MGET', KEYS[1], KEYS[5])
    value = stored[1]
    if record == '' and is_available(is_behind) then
        return hold(value, token, group, lease_ms, call('EXISTS', KEYS[3]))
    end
end
return busy()
