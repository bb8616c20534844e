-- Take a lock, or stand in its queue; the rest is in lock_acquire.lua.
-- ARGV: 1 'read' to share the lock with readers, else '-'; 2 lease in ms, 3 lease in ms of a grant
--       that is announced, 4 channel for that (empty: not willing to wait), 5 token
-- Reply: {1, fence} or {0, ms left of the holder's lease, position in the queue or -1, a number
--       that fences of later grants exceed}
local is_shared, lease_ms, channel, token = ARGV[1] == 'read', tonumber(ARGV[2]), ARGV[4], ARGV[5]
local value = call('GET', KEYS[1])
-- When the last of the queue asked; nil: nobody waits.
local last = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
-- The usual case comes before the functions that it does without: making them costs as much.
if not (is_shared or value or last) then
    call('SET', KEYS[1], token, 'PX', lease_ms)
    return {1, next_fence(lease_ms)}
end
