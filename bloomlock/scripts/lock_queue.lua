-- How lock_acquire.lua begins, whose arguments it reads: a client that finds another one to hold the
-- lock alone stands in the queue and needs no function of lock_common.lua.
local group, lease_ms, token, record = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6]
local stored = call('MGET', KEYS[1], KEYS[5])
local value = stored[1]
local is_heard = false

local function enqueue()
    -- A clock that was set back must not put a newcomer before those who wait.
    local last = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
    local ticket = last and math.max(now_us, last + 1) or now_us
    local is_new = call('ZADD', KEYS[3], 'NX', ticket, record) == 1
    is_heard = is_new and ARGV[4] == '1' or hears(string.match(record, '^.* (.+)'))
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
    -- The first newcomer of each second does it for all of that second.
    if not (is_new and last) or math.floor(last / 1000000) ~= tonumber(time[1]) then
        call('PEXPIRE', KEYS[3], 2 * LIVENESS_MS)
    end
end

local function busy()
    -- The next grant may be made in this very microsecond.
    local fence = math.max((stored[2] or 0) + 0, now_us - 1)
    return {0, call('PTTL', KEYS[1]), is_heard and 1 or 0, fence}
end

if value and value ~= token and group == '' and string.byte(value) ~= SHARED then
    if record ~= '' then
        enqueue()
    end
    return busy()
end
