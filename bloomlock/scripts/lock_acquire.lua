-- All other cases of lock_acquire_free.lua.
value = look(value)
if is_available(value, is_shared) and not last or holds(value) then
    return hold(value, token, is_shared, lease_ms)
end
local waits = channel ~= ''
if waits or is_available(value, is_shared) then
    -- A clock that was set back must not put a newcomer before those who wait.
    local ticket = last and math.max(now_us, last + 1) or now_us
    local is_new = call('ZADD', KEYS[3], 'NX', ticket, record) == 1
    call('PEXPIRE', KEYS[3], 2 * LIVENESS_MS)
    local mark = reaches(channel) and 0 or DEAF
    -- Who asks again is alive. A newcomer that no message reaches, as it listens at another server of
    -- a cluster, keeps its turn too.
    if not is_new or mark ~= 0 then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS + mark, record)
        call('PEXPIRE', KEYS[4], 2 * LIVENESS_MS)
    end
end
if is_available(value, is_shared) then
    local grant = promote(value)[token]
    if not waits then
        leave(record)
    end
    if grant then
        return grant
    end
end
-- The next grant may be made in this very microsecond.
return {0, call('PTTL', KEYS[1]), math.max((call('GET', KEYS[5]) or 0) + 0, now_us - 1)}
