-- Set the bits of items and end their claims, in one step.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on for each item its id, token and places
-- Reply: {header, for each item 1, or 0 if another worker claimed it since}
local function commit(id, token, places)
    local found = read_record(call('HGET', KEYS[3], id))
    if call('ZSCORE', KEYS[5], token) or (found and found.token ~= token) then
        return 0
    end
    call('BITFIELD', KEYS[1], bitfield(places, 'SET'))
    call('HDEL', KEYS[4], id)
    if found then
        finish(id, found, 'committed')
    end
    return 1
end

local reply = {header}
for start = 2, #ARGV, 3 do
    reply[#reply + 1] = commit(ARGV[start], ARGV[start + 1], ARGV[start + 2])
end
return reply
