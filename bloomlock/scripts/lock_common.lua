-- What the lock scripts share where a case is not the usual one.

-- The value of the lock, or false if it is free, also by the leases of its readers. Nothing is
-- written: a server without memory refuses the first write of a script, and none after it.
local function look(value)
    if value ~= SHARED then
        return value
    end
    return call('ZCOUNT', KEYS[2], '(' .. now_ms, '+inf') > 0 and value
end

local function holds(value, token, is_shared)
    if not is_shared then
        return value == token
    end
    return value == SHARED and (call('ZSCORE', KEYS[2], token) or 0) + 0 > now_ms
end

-- The key of a shared lock ends with the last lease.
local function end_with_the_last()
    local last = call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if last[1] then
        call('PEXPIREAT', KEYS[1], last[2])
        call('PEXPIREAT', KEYS[2], last[2])
    else
        call('DEL', KEYS[1])
    end
end

-- Refreshing never shortens a lease: it may be a late copy of an earlier request. A hold that was
-- granted in this very step has exactly the lease that is given.
local function set_lease(value, token, is_shared, lease_ms, is_new)
    if not is_shared then
        if value ~= token then
            call('SET', KEYS[1], token, 'PX', lease_ms)
        elseif is_new or call('PTTL', KEYS[1]) < lease_ms then
            -- Not SET: a server without memory refuses that, and would take the lock from its holder.
            call('PEXPIRE', KEYS[1], lease_ms)
        end
        return
    end
    local before_ms = not is_new and value and call('ZSCORE', KEYS[2], token) or 0
    local until_ms = math.max(now_ms + lease_ms, before_ms)
    -- The first write is one that a server without memory refuses.
    call('SET', KEYS[1], SHARED, 'PXAT', until_ms)
    if value then
        call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
    else
        call('DEL', KEYS[2])
    end
    call('ZADD', KEYS[2], until_ms, token)
    end_with_the_last()
end

local function hold(value, token, is_shared, lease_ms)
    set_lease(value, token, is_shared, lease_ms)
    return {1, next_fence(lease_ms)}
end

-- Whether a message on a channel reaches a client: '-' is the channel of those who look.
local function reaches(channel)
    local reply = channel ~= '-' and redis.pcall('PUBSUB', 'NUMSUB', channel)
    return not reply or reply.err ~= nil or reply[2] ~= 0
end

local function leave(record)
    call('ZREM', KEYS[3], record)
    call('ZREM', KEYS[4], record)
end

-- Hand the lock to who waits. Return grants by token; and whether any waiter goes before a newcomer.
local function promote(value, asker)
    local granted, start, is_behind = {}, 0, false
    while true do
        local head = call('ZRANGE', KEYS[3], start, start, 'WITHSCORES')
        local record = head[1]
        if not record then
            return granted, is_behind
        end
        local token, lease_ms, kind, channel =
            string.match(record, '^([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+)$')
        local is_reader = kind == 'read'
        local until_ms = call('ZSCORE', KEYS[4], record) or math.floor(head[2] / 1000) + LIVENESS_MS
        if next(granted) and not is_reader then
            start = start + 1
            is_behind = true
        elseif until_ms + 0 <= now_ms then
            leave(record)
        elseif not (record == asker or until_ms % 1 == DEAF or reaches(channel)) then
            -- It could be reached when it last asked, and keeps its place.
            start = start + 1
        elseif value and not (is_reader and value == SHARED) then
            return granted, true
        else
            leave(record)
            local grant = hold(value, token, is_reader, tonumber(lease_ms))
            granted[token] = grant
            -- A server may forbid it; the waiter then finds its grant by looking.
            redis.pcall('PUBLISH', channel, string.format('%s %.0f', token, grant[2]))
            if not is_reader then
                return granted, true
            end
            value = SHARED
        end
    end
end
