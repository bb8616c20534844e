-- Take a lock, or stand in its queue; the rest is in lock_acquire.lua.
-- Reply: {1, fence} or {0, ms left of the holder's lease, a number that later fences exceed}
local value = call('GET', KEYS[1])
-- When the last of the queue asked; nil: nobody waits.
local last = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
-- The usual case comes before the functions that it does without: making them costs as much.
if not (is_shared or value or last) then
    call('SET', KEYS[1], token, 'PX', lease_ms)
    return {1, next_fence(lease_ms)}
end
