-- Let a hold live on; never creates one, and never shortens its lease.
-- ARGV: 1 'read' if it is shared, else '-'; 2 lease in ms from now, at least, 3 token
-- Reply: 1 if the lock was held, else 0
local is_shared, lease_ms, token = ARGV[1] == 'read', tonumber(ARGV[2]), ARGV[3]
local value = look(call('GET', KEYS[1]))
if not holds(value, token, is_shared) then
    return 0
end
set_lease(value, token, is_shared, lease_ms)
return 1
