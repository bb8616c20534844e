-- What the lock scripts share where a case is not the usual one.
-- How who asks stands in the queue.
local record = table.concat({token, ARGV[3], ARGV[1], channel}, ' ')

-- The value of the lock, or false if it is free, also by the leases of its readers. Nothing is
-- written: a server without memory refuses the first write of a script, and none after it.
local function look(value)
    if value ~= SHARED then
        return value
    end
    return call('ZCOUNT', KEYS[2], '(' .. now_ms, '+inf') > 0 and value
end

local function is_available(value, is_shared)
    return not value or is_shared and value == SHARED
end

local function holds(value)
    if not is_shared then
        return value == token
    end
    return value == SHARED and (call('ZSCORE', KEYS[2], token) or 0) + 0 > now_ms
end

-- The key of a shared lock ends with the last lease.
local function end_with_the_last()
    call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
    local last = call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if last[1] then
        call('PEXPIREAT', KEYS[1], last[2])
        call('PEXPIREAT', KEYS[2], last[2])
    else
        call('DEL', KEYS[1])
    end
end

-- Refreshing never shortens a lease: it may be a late copy of an earlier request.
local function set_lease(value, token, is_shared, lease_ms)
    if is_shared then
        -- The first write is one that a server without memory refuses.
        call('SET', KEYS[1], SHARED)
        if not value then
            call('DEL', KEYS[2])
        end
        call('ZADD', KEYS[2], 'GT', now_ms + lease_ms, token)
        end_with_the_last()
    elseif value ~= token then
        call('SET', KEYS[1], token, 'PX', lease_ms)
    elseif call('PTTL', KEYS[1]) < lease_ms then
        -- Not SET: a server without memory refuses that, and would take the lock from its holder.
        call('PEXPIRE', KEYS[1], lease_ms)
    end
end

local function hold(value, token, is_shared, lease_ms)
    set_lease(value, token, is_shared, lease_ms)
    return {1, next_fence(lease_ms)}
end

-- Whether a message on a channel reaches a client: '-' is the channel of those who look, '' of those
-- who do not wait.
local function reaches(channel)
    local reply = #channel > 1 and redis.pcall('PUBSUB', 'NUMSUB', channel)
    return not reply or reply.err ~= nil or reply[2] ~= 0
end

local function leave(record)
    call('ZREM', KEYS[3], record)
    call('ZREM', KEYS[4], record)
end

-- Hand the lock to who waits; return grants by token.
local function promote(value)
    local granted, start = {}, 0
    while true do
        local head = call('ZRANGE', KEYS[3], start, start, 'WITHSCORES')
        local waiter = head[1]
        if not waiter then
            return granted
        end
        local its_token, its_lease_ms, kind, its_channel =
            string.match(waiter, '^([^ ]+) ([^ ]+) ([^ ]+) ([^ ]*)$')
        local is_reader = kind == 'read'
        local until_ms = call('ZSCORE', KEYS[4], waiter) or math.floor(head[2] / 1000) + LIVENESS_MS
        if next(granted) and not is_reader then
            start = start + 1
        elseif until_ms + 0 <= now_ms then
            leave(waiter)
        elseif not (waiter == record or until_ms % 1 == DEAF or reaches(its_channel)) then
            -- It could be reached when it last asked, and keeps its place.
            start = start + 1
        elseif not is_available(value, is_reader) then
            return granted
        else
            leave(waiter)
            -- Who asks is answered, and has the whole lease; the message to it is of no use.
            its_lease_ms = waiter == record and lease_ms or tonumber(its_lease_ms)
            local grant = hold(value, its_token, is_reader, its_lease_ms)
            granted[its_token] = grant
            -- A server may forbid it; the waiter then finds its grant by looking.
            redis.pcall('PUBLISH', its_channel, string.format('%s %.0f', its_token, grant[2]))
            if not is_reader then
                return granted
            end
            value = SHARED
        end
    end
end
