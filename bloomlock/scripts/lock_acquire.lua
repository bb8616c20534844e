-- All other cases of lock_acquire_plain.lua.
local lease_ms = tonumber(ARGV[2])

local function is_available(value, is_behind)
    local joinable = group ~= '' and value == '=' .. group
    if joinable and ARGV[3] == '1' then
        return true
    end
    return (joinable or not value) and not is_behind
end

local value = look()
if not value or value == token or group ~= '' then
    local waiters = call('EXISTS', KEYS[3])
    if is_available(value, waiters == 1) or holds(value, token, group) then
        return hold(value, token, group, lease_ms, waiters)
    end
end
local is_new = 0
if record ~= '' then
    is_new = enqueue()
    local is_heard = hears(channel)
    if is_new == 0 then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS, record)
        if is_heard then
            call('ZREM', KEYS[4], 'deaf ' .. record)
        end
    end
    if not is_heard then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS, 'deaf ' .. record)
    end
    if is_new == 0 or not is_heard then
        call('PEXPIRE', KEYS[4], 2 * LIVENESS_MS)
    end
end
if not value or group ~= '' then
    local granted, is_behind = promote(value, record)
    if granted[token] then
        -- Who is answered need not be announced to, and has the whole lease.
        set_lease(call('GET', KEYS[1]), token, group, lease_ms, true)
        return granted[token]
    end
    value = look()
    if record == '' and is_available(value, is_behind) then
        return hold(value, token, group, lease_ms, call('EXISTS', KEYS[3]))
    end
end
if record == '' then
    return busy(-1)
end
local position = call('ZRANK', KEYS[3], record)
return busy(is_new == 1 and math.min(position, 1) or position)
