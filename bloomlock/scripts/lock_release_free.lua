-- Give up a hold and a place in the queue, and hand the lock on; the rest is in lock_release.lua.
-- ARGV: 1 'read' if it was shared, else '-'; 2 its record in the queue (empty: none), 3 token
-- Reply: 1 if the lock was held, else 0
local is_shared, record, token = ARGV[1] == 'read', ARGV[2], ARGV[3]
local value = call('GET', KEYS[1])
-- The usual case: nobody waits.
if not is_shared and value == token and call('EXISTS', KEYS[3]) == 0 then
    return call('DEL', KEYS[1])
end
