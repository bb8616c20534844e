-- Take a lock that is free and has no queue, or stand in the queue of one that is held.
-- ARGV: 1 'read' to share the lock with readers, else '-'; 2 lease in ms, 3 lease in ms of a grant
--       that is announced, 4 channel for that (empty: not willing to wait), 5 token
-- Reply: {1, fence, 1 if a client waits behind} or {0, ms left of the holder's lease, position in
--       the queue or -1, a number that fences of later grants exceed}
local is_shared, channel, token = ARGV[1] == 'read', ARGV[4], ARGV[5]
local record = ''
if channel ~= '' then
    record = token .. ' ' .. ARGV[3] .. ' ' .. ARGV[1] .. ' ' .. channel
end

-- The next grant may be made in this very microsecond.
local function busy(position)
    local fence = math.max((call('GET', KEYS[5]) or 0) + 0, now_us - 1)
    return {0, call('PTTL', KEYS[1]), position, fence}
end

-- Stand in the queue; return 1 if the record is new there, and whether others were.
local function enqueue()
    local last = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
    -- A clock that was set back must not put a newcomer before those who wait.
    local ticket = last and math.max(now_us, last + 1) or now_us
    local is_new = call('ZADD', KEYS[3], 'NX', ticket, record)
    -- Of newcomers the first of each second lets the queue live on.
    if is_new == 0 or not last or ticket > now_us or now_us - last > now_us % 1000000 then
        call('PEXPIRE', KEYS[3], 2 * LIVENESS_MS)
    end
    return is_new, last ~= nil
end

local value = not is_shared and call('GET', KEYS[1])
if not is_shared and not value and call('EXISTS', KEYS[3]) == 0 then
    call('SET', KEYS[1], token, 'PX', ARGV[2])
    return {1, next_fence(ARGV[2]), 0}
end
if value and value ~= token and value ~= SHARED then
    if channel == '' then
        return busy(-1)
    end
    if hears(channel) then
        local is_new, is_behind = enqueue()
        if is_new == 1 then
            return busy(is_behind and 1 or 0)
        end
    end
end
