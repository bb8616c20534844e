-- All other cases of lock_acquire_free.lua.
local record = channel ~= '' and token .. ' ' .. ARGV[3] .. ' ' .. ARGV[1] .. ' ' .. channel

local function is_available(value)
    return not value or is_shared and value == SHARED
end

value = look(value)
if is_available(value) and not last or holds(value, token, is_shared) then
    return hold(value, token, is_shared, lease_ms)
end
local is_new = false
if record then
    -- A clock that was set back must not put a newcomer before those who wait.
    local ticket = last and math.max(now_us, last + 1) or now_us
    is_new = call('ZADD', KEYS[3], 'NX', ticket, record) == 1
    call('PEXPIRE', KEYS[3], 2 * LIVENESS_MS)
    local mark = reaches(channel) and 0 or DEAF
    -- Who asks again is alive. A newcomer that no message reaches, as it listens at another server of
    -- a cluster, keeps its turn too.
    if not is_new or mark ~= 0 then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS + mark, record)
        call('PEXPIRE', KEYS[4], 2 * LIVENESS_MS)
    end
end
if is_available(value) then
    local granted, is_behind = promote(value, record)
    if granted[token] then
        -- Who is answered need not be announced to, and has the whole lease.
        set_lease(call('GET', KEYS[1]), token, is_shared, lease_ms, true)
        return granted[token]
    end
    value = look(call('GET', KEYS[1]))
    if not record and is_available(value) and not is_behind then
        return hold(value, token, is_shared, lease_ms)
    end
end
local position = -1
if is_new then
    position = last and 1 or 0
elseif record then
    position = call('ZRANK', KEYS[3], record)
end
-- The next grant may be made in this very microsecond.
local fence = math.max((call('GET', KEYS[5]) or 0) + 0, now_us - 1)
return {0, call('PTTL', KEYS[1]), position, fence}
