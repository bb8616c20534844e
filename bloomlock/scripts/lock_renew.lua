-- Let a hold live on; never creates one, and never shortens its lease.
-- Reply: 1 if the lock was held, else 0
local value = look(call('GET', KEYS[1]))
if not holds(value) then
    return 0
end
set_lease(value, token, is_shared, lease_ms)
return 1
