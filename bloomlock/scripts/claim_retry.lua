-- Offer items that failed, or whose claims are over, at once and with no attempts counted.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on the id of each item
-- Reply: {header, for each item 1: a worker has it, or is given it; 0: it did not fail}
local function retry(id)
    local found, failure = read_record(id), read_failure(id)
    if is_live(id, found) then
        return 1
    end
    if not (found or failure) then
        return 0
    end
    write_record(id, {
        token = found and found.token or '',
        fence = found and found.fence or next_fence(),
        attempts = 0,
        max_attempts = (found or failure).max_attempts,
        carried = (found or failure).carried,
    })
    forget_failure(id, failure)
    set_lease(id, now_ms)
    return 1
end

use(every(2, 1))
local reply = {found_header}
for i, id in ipairs(ids) do
    reply[i + 1] = retry(id)
end
return done(reply)
