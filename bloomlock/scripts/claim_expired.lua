-- Find the claims that have been over for longest.
-- KEYS: see claim_common.lua
-- ARGV: 2 how many at most
-- Reply: {header, for each claim its id and its record}
local found = call('ZRANGEBYSCORE', KEYS[2], '-inf', integer(now_ms), 'LIMIT', 0, ARGV[2])
local reply = {found_header}
if not found[1] then
    return reply
end
use(found)
for _, id in ipairs(ids) do
    local record = open[id]
    if record then
        reply[#reply + 1] = id
        reply[#reply + 1] = record
    else
        over[#over + 1] = id
    end
end
return done(reply)
