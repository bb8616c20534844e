-- All other cases of lock_acquire_plain.lua.
local lease_ms = tonumber(ARGV[2])

local function is_available(value)
    return not value or is_shared and value == SHARED
end

value = look()
local waiters = call('EXISTS', KEYS[3])
if is_available(value) and waiters == 0 or holds(value, token, is_shared) then
    return hold(value, token, is_shared, lease_ms, waiters)
end
local is_new = 0
if record ~= '' then
    is_new = enqueue()
    local is_heard = hears(channel)
    if is_new == 0 then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS, record)
    end
    if not is_heard then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS, 'deaf ' .. record)
    elseif is_new == 0 then
        call('ZREM', KEYS[4], 'deaf ' .. record)
    end
    call('PEXPIRE', KEYS[4], 2 * LIVENESS_MS)
end
if is_available(value) then
    local granted, is_behind = promote(value, record)
    if granted[token] then
        -- Who is answered need not be announced to, and has the whole lease.
        set_lease(call('GET', KEYS[1]), token, is_shared, lease_ms, true)
        return granted[token]
    end
    value = look()
    if record == '' and is_available(value) and not is_behind then
        return hold(value, token, is_shared, lease_ms, call('EXISTS', KEYS[3]))
    end
end
if record == '' then
    return busy(-1)
end
local position = call('ZRANK', KEYS[3], record)
return busy(is_new == 1 and math.min(position, 1) or position)
