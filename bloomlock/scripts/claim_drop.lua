-- Forget items that failed, or whose claims are over, and their attempts.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on the id of each item
-- Reply: {header, for each item 1, or 0 if it did not fail or a worker has it}
local function drop(id)
    local found = read_record(id)
    if is_live(id, found) then
        return 0
    end
    local failure = read_failure(id)
    forget_failure(id, failure)
    if found then
        if found.token ~= '' then
            take_over(found.token)
        end
        finish(id, found, 'expired')
    end
    return (found or failure) and 1 or 0
end

use(every(2, 1))
local reply = {found_header}
for i, id in ipairs(ids) do
    reply[i + 1] = drop(id)
end
return done(reply)
