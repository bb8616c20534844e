-- Let claims live on; never creates one, and never shortens a lease.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on for each item its id, token and lease in ms from now, at least
-- Reply: {header, for each item 1, or 0 if the claim is over}
local reply = {header}
for start = 2, #ARGV, 3 do
    local id, lease_ms = ARGV[start], tonumber(ARGV[start + 2])
    local found = read_record(call('HGET', KEYS[3], id))
    local mine = found and found.token == ARGV[start + 1]
    if mine then
        local until_ms = tonumber(call('ZSCORE', KEYS[2], id) or 0)
        call('ZADD', KEYS[2], integer(math.max(until_ms, now_ms + lease_ms)), id)
    end
    reply[#reply + 1] = mine and 1 or 0
end
return reply
