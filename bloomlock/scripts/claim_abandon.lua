-- Give items back.
-- KEYS: see claim_common.lua
-- ARGV: 2 when the items are to be found again: 0 never, 1 when their leases are over, 2 at once;
--       then for each item its id, token and error, '+' and why the work failed, or empty if it
--       did not
-- Reply: {header, for each item 1, or 0 if the claim was over already}
local is_offered, at_once = ARGV[2] ~= '0', ARGV[2] == '2'

local function abandon(id, token, error)
    local found = read_record(id)
    if not found or found.token ~= token then
        return 0
    end
    local attempts, max_attempts, counter = found.attempts, found.max_attempts, 'failed'
    if error == '' then
        -- One that was retried since has none.
        attempts, counter = math.max(0, attempts - 1), 'abandoned'
    elseif max_attempts > 0 then
        write_failure(id, attempts, max_attempts, string.sub(error, 2), '', found.carried)
    end
    if is_offered and not (0 < max_attempts and max_attempts <= attempts) then
        found.token, found.attempts = '', attempts
        write_record(id, found)
        if at_once then
            set_lease(id, now_ms)
        end
        count(counter)
        wake(id)
    else
        finish(id, found, counter)
    end
    return 1
end

use(every(3, 3))
local tokens, errors = every(4, 3), every(5, 3)
local reply = {found_header}
for i, id in ipairs(ids) do
    reply[i + 1] = abandon(id, tokens[i], errors[i])
end
return done(reply)
