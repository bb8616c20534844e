-- Let a hold live on; never creates one, and never shortens its lease.
-- KEYS: see lock_common.lua
-- ARGV: 1 token, 2 group (empty: exclusive), 3 lease in ms from now, at least
-- Reply: 1 if the lock was held, else 0
local token, group, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local value = forget()
if not holds(value, token, group) then
    return 0
end
set_lease(value, token, group, lease_ms)
return 1
