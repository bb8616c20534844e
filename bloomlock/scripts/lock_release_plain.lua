-- Give up an exclusive hold, and hand the lock to the first waiter if no mark is to be looked at.
-- ARGV: 1 'read' if it was shared, else '-'; 2 its record in the queue (empty: none), 3 token
-- Reply: 1 if the lock was held, else 0
local is_shared, record, token = ARGV[1] == 'read', ARGV[2], ARGV[3]
if not is_shared and record == '' and call('GET', KEYS[1]) == token then
    local head = call('ZRANGE', KEYS[3], 0, 1, 'WITHSCORES')
    local first = head[1]
    if not first then
        call('DEL', KEYS[1])
        return 1
    end
    local next_token, lease_ms, kind, channel = read_record(first)
    if kind == '-' and hears(channel) and call('EXISTS', KEYS[4]) == 0
        and math.floor(head[2] / 1000) + LIVENESS_MS > now_ms then
        call('ZREM', KEYS[3], first)
        call('SET', KEYS[1], next_token, 'PX', lease_ms)
        announce(channel, next_token, next_fence(lease_ms), head[3] and 1 or 0)
        return 1
    end
end
