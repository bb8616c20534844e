-- Give up a hold and a place in the queue, and hand the lock on; the rest is in lock_release.lua.
-- Reply: 1 if the lock was held, else 0
local value = redis.call('GET', KEYS[1])
-- The usual case, nobody waits, needs nothing of lock_start.lua.
if value == ARGV[5] and redis.call('EXISTS', KEYS[3]) == 0 then
    return redis.call('DEL', KEYS[1])
end
