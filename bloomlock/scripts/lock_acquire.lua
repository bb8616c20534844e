-- Take a lock, or stand in its queue in the same step.
-- KEYS: see lock_common.lua
-- ARGV: 1 group (empty: exclusive), 2 lease in ms, 3 1 if it may join its group past waiters,
--       4 token, 5 its record in the queue (empty: not willing to wait)
-- Reply: {1, fence, 1 if a client waits behind} or {0, ms left of the holder's lease, position in
--       the queue or -1, a number that fences of later grants exceed}
local group, lease_ms, token, record = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5]

local function is_available(value, is_behind)
    local joinable = group ~= '' and value == '=' .. group
    if joinable and ARGV[3] == '1' then
        return true
    end
    return (joinable or not value) and not is_behind
end

local value = forget()
if not value or value == token or group ~= '' then
    local waiters = call('EXISTS', KEYS[3])
    if is_available(value, waiters == 1) or holds(value, token, group) then
        return hold(value, token, group, lease_ms, waiters)
    end
end
local position = -1
if record ~= '' then
    -- A clock that was set back must not put a newcomer before those who wait.
    local last = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    local ticket = last[2] and math.max(now_us, last[2] + 1) or now_us
    local is_new = call('ZADD', KEYS[3], 'NX', ticket, record) == 1
    local is_heard = hears(string.match(record, '^.* (.+)'))
    if not is_new then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS, record)
        if is_heard then
            call('ZREM', KEYS[4], 'deaf ' .. record)
        end
    end
    if not is_heard then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS, 'deaf ' .. record)
    end
    if not (is_new and is_heard) then
        call('PEXPIRE', KEYS[4], 2 * LIVENESS_MS)
    end
    call('PEXPIRE', KEYS[3], 2 * LIVENESS_MS)
end
if not value or group ~= '' then
    local granted, is_behind = promote(value, record)
    if granted[token] then
        -- Who is answered need not be announced to, and has the whole lease.
        set_lease(call('GET', KEYS[1]), token, group, lease_ms, true)
        return granted[token]
    end
    value = call('GET', KEYS[1])
    if record == '' and is_available(value, is_behind) then
        return hold(value, token, group, lease_ms, call('EXISTS', KEYS[3]))
    end
end
if record ~= '' then
    position = call('ZRANK', KEYS[3], record)
end
-- The next grant may be made in this very microsecond.
local fence = math.max((call('GET', KEYS[5]) or 0) + 0, now_us - 1)
return {0, call('PTTL', KEYS[1]), position, fence}
