-- Find the claims that have been over for longest.
-- KEYS: see claim_common.lua
-- ARGV: 2 how many at most
-- Reply: {header, for each claim its id and its record}
local reply = {header}
local ids = call('ZRANGEBYSCORE', KEYS[2], '-inf', integer(now_ms), 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
    local record = call('HGET', KEYS[3], id)
    if record then
        reply[#reply + 1] = id
        reply[#reply + 1] = record
    else
        call('ZREM', KEYS[2], id)
    end
end
return reply
