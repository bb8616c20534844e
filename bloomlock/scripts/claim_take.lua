-- Take items that are neither done nor claimed.
-- KEYS: see claim_common.lua
-- ARGV: 2 lease in ms, 3 max_attempts, 4 channel (empty: not willing to wait), 5 1 if only claims
--       that are over are wanted; then for each item its id, token, places and what it carries
-- Reply: {header, for each item a list}: {0} gone, {1, fence, attempts} new, {2} seen,
--       {3, ms left of the other's lease, what it carries} busy, {4, attempts} failed too often
local lease_ms, default_max, channel = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local only_expired = ARGV[5] == '1'
local granted = {}

local function wait(id, token)
    if channel ~= '' then
        local entry = channel .. ' ' .. token .. ';'
        local entries = call('HGET', KEYS[6], id) or ''
        if not string.find(entries, entry, 1, true) then
            call('HSET', KEYS[6], id, entries .. entry)
        end
    end
end

local function claim(id, token, is_seen, carried)
    local found = read_record(id)
    local until_ms = found and deadline_of(id)
    if found and not until_ms then
        -- A claim whose deadline is missing may be a live one.
        until_ms = now_ms + lease_ms
        set_lease(id, until_ms)
    end
    local is_over = found and until_ms <= now_ms
    if is_seen then
        if is_over then
            if found.token ~= '' then
                -- Else it could be committed after a discard and another worker's commit.
                take_over(found.token)
            end
            finish(id, found, 'expired')
        end
        return {2}
    end
    if found and token == found.token then
        set_lease(id, math.max(until_ms, now_ms + lease_ms))
        if not only_expired and carried ~= found.carried then
            -- Another call of the same worker, whose first one was not answered.
            found.carried = carried
            write_record(id, found)
        end
        return {1, integer(found.fence), found.attempts}
    end
    if only_expired and not is_over then
        return {0}
    end
    if found and found.token ~= '' and not is_over then
        wait(id, token)
        return {3, until_ms - now_ms, found.carried}
    end
    local failure = read_failure(id)
    local attempts = math.max(found and found.attempts or 0, failure and failure.attempts or 0)
    local known = found or failure
    local max_attempts = default_max
    if max_attempts == 0 and known then
        max_attempts = known.max_attempts
    end
    if found and only_expired then
        carried = found.carried
    end
    if 0 < max_attempts and max_attempts <= attempts then
        if found then
            -- No other worker has it, so its worker may still commit it.
            local error = LEASE_OVER
            if found.token == '' and failure then
                error = failure.error
            end
            write_failure(id, attempts, max_attempts, error, found.token, found.carried)
            finish(id, found, 'expired')
        end
        return {4, attempts}
    end
    if found and found.token ~= '' then
        take_over(found.token)
        count('expired')
    end
    if failure and failure.token ~= '' then
        take_over(failure.token)
        write_failure(
            id, failure.attempts, failure.max_attempts, failure.error, '', failure.carried)
    end
    granted[#granted + 1] = token
    write_record(id, {
        token = token,
        fence = next_fence(),
        attempts = attempts + 1,
        max_attempts = max_attempts,
        carried = carried,
    })
    set_lease(id, now_ms + lease_ms)
    count('claimed')
    return {1, integer(last_fence), attempts + 1}
end

use(every(6, 4))
local tokens, places, carried = every(7, 4), every(8, 4), every(9, 4)
local why = read_shard(false)
if why then
    return why
end
local reply = {found_header}
for i, id in ipairs(ids) do
    local is_seen = not dead[id] and find_item(slices, places[i], 1)
    reply[i + 1] = claim(id, tokens[i], is_seen, carried[i])
end
write('ZREM', KEYS[5], granted)
return done(reply)
