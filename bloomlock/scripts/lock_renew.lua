-- Let a hold live on; never creates one.
-- KEYS: see lock_common.lua
-- ARGV: 1 token, 2 group (empty: exclusive), 3 lease in ms from now
-- Reply: 1 if the lock was held, else 0
local token, group, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local value = forget()
if not holds(value, token, group) then
    return 0
end
if group == '' then
    -- Not SET: a server without memory refuses that, and would take the lock from its holder.
    redis.call('PEXPIRE', KEYS[1], lease_ms)
else
    set_lease(value, token, group, lease_ms)
end
return 1
