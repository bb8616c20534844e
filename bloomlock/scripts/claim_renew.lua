-- Let claims live on; never creates one, and never shortens a lease.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on for each item its id, token and lease in ms from now, at least
-- Reply: {header, for each item 1, or 0 if the claim is over}
use(every(2, 3))
local tokens, lease_ms = every(3, 3), every(4, 3)
local reply = {found_header}
for i, id in ipairs(ids) do
    local found = read_record(id)
    if found and found.token == tokens[i] then
        set_lease(id, math.max(deadline_of(id) or 0, now_ms + lease_ms[i]))
        reply[i + 1] = 1
    else
        reply[i + 1] = 0
    end
end
return done(reply)
