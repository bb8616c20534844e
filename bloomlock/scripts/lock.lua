-- Acquire, renew or release one lock. A renewal never creates a hold; a release also gives up a
-- place in the queue, and hands the lock on.
-- KEYS:  1 lock, 2 holders, 3 queue, 4 alive, 5 fence
-- ARGV:  1 'acquire', 'renew' or 'release'; 2 'read' to share the lock with readers, else '-';
--        3 lease in ms; 4 lease in ms of a grant that is announced; 5 channel for that: empty if the
--        caller does not wait, '-' if it polls; 6 token
-- Reply: of acquire {1, fence}, or {0, ms left of the holder's lease, a number that later fences
--        exceed}; else 1 if the lock was held, 0 if not
local call, step, token = redis.call, ARGV[1], ARGV[6]
local value = call('GET', KEYS[1])
-- The usual cases come before the functions that they do without: making them costs as much.
if step == 'release' and value == token and call('EXISTS', KEYS[3]) == 0 then
    return call('DEL', KEYS[1])
end

local is_shared, lease_ms, channel = ARGV[2] == 'read', tonumber(ARGV[3]), ARGV[5]
-- A command gets whole numbers below 2^53 digit for digit.
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local function next_fence(lease_ms)
    local fence, life_ms = now_us, math.max(60000, 2 * lease_ms)
    local last = call('SET', KEYS[5], fence, 'PX', life_ms, 'GET')
    if last and last + 0 >= fence then
        -- The last grant was in this microsecond, or the clock was set back since: keep the fence
        -- until the clock is past it.
        fence = last + 1
        call('SET', KEYS[5], fence, 'PX', life_ms + math.floor(fence / 1000) - now_ms)
    end
    return fence
end

-- The ticket of the last waiter; nil: the queue is empty.
local last = step == 'acquire' and call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
if step == 'acquire' and not (is_shared or value or last) then
    call('SET', KEYS[1], token, 'PX', lease_ms)
    return {1, next_fence(lease_ms)}
end

local LIVENESS_MS = 6000
-- Added to the time until which a waiter is alive that no message reached when it last asked.
local DEAF = 0.5
local SHARED = '=read'
-- The asker, as it stands in the queue.
local record = table.concat({token, ARGV[4], ARGV[2], channel}, ' ')

-- The key of a shared lock ends with the last lease; return its value then.
local function end_with_the_last()
    call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
    local last = call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if not last[1] then
        call('DEL', KEYS[1])
        return false
    end
    call('PEXPIREAT', KEYS[1], last[2])
    call('PEXPIREAT', KEYS[2], last[2])
    return SHARED
end

-- Refreshing never shortens a lease: it may be a late copy of an earlier request.
local function set_lease(value, token, is_shared, lease_ms)
    if is_shared then
        -- The first write is one that a server without memory refuses, and it refuses no later one.
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

-- Whether a message on a channel reaches a client.
local function reaches(channel)
    local reply = #channel > 1 and redis.pcall('PUBSUB', 'NUMSUB', channel)
    return not reply or reply.err ~= nil or reply[2] ~= 0
end

local function leave(record)
    call('ZREM', KEYS[3], record)
    call('ZREM', KEYS[4], record)
end

-- Hand the lock to the first waiter or to all readers; return the fences by token.
local function promote(value)
    local fences, start = {}, 0
    while true do
        local head = call('ZRANGE', KEYS[3], start, start, 'WITHSCORES')
        local waiter = head[1]
        if not waiter then
            return fences
        end
        local its_token, its_lease_ms, kind, its_channel =
            string.match(waiter, '^([^ ]+) ([^ ]+) ([^ ]+) ([^ ]*)$')
        local is_reader = kind == 'read'
        local until_ms = call('ZSCORE', KEYS[4], waiter) or math.floor(head[2] / 1000) + LIVENESS_MS
        if next(fences) and not is_reader then
            start = start + 1
        elseif until_ms + 0 <= now_ms then
            leave(waiter)
        elseif not (waiter == record or until_ms % 1 == DEAF or reaches(its_channel)) then
            -- It could be reached when it last asked, and keeps its place.
            start = start + 1
        elseif value and not (is_reader and value == SHARED) then
            return fences
        else
            leave(waiter)
            -- The asker gets an answer and the whole lease. It ignores the message.
            its_lease_ms = waiter == record and lease_ms or tonumber(its_lease_ms)
            set_lease(value, its_token, is_reader, its_lease_ms)
            local fence = next_fence(its_lease_ms)
            fences[its_token] = fence
            -- A server may forbid it; the waiter then finds its grant by looking.
            redis.pcall('PUBLISH', its_channel, string.format('%s %.0f', its_token, fence))
            if not is_reader then
                return fences
            end
            value = SHARED
        end
    end
end

local held = value == token
if is_shared then
    held = value == SHARED and (call('ZSCORE', KEYS[2], token) or 0) + 0 > now_ms
end
if step == 'renew' then
    if held then
        set_lease(value, token, is_shared, lease_ms)
    end
    return held and 1 or 0
elseif step == 'release' then
    if channel ~= '' then
        leave(record)
    end
    if held and is_shared then
        call('ZREM', KEYS[2], token)
        value = end_with_the_last()
    elseif held then
        -- The next holder's token takes the place of this one.
        value = false
    end
    if not next(promote(value)) and held and not is_shared then
        call('DEL', KEYS[1])
    end
    return held and 1 or 0
end

local waits, is_free = channel ~= '', not value or is_shared and value == SHARED
if held or is_free and not last then
    set_lease(value, token, is_shared, lease_ms)
    return {1, next_fence(lease_ms)}
end
if waits or is_free then
    -- A clock that was set back must not put a newcomer before earlier waiters.
    local ticket = last and math.max(now_us, last + 1) or now_us
    local is_new = call('ZADD', KEYS[3], 'NX', ticket, record) == 1
    call('PEXPIRE', KEYS[3], 2 * LIVENESS_MS)
    local mark = reaches(channel) and 0 or DEAF
    -- A waiter that asks again is alive. A newcomer that no message reaches, because it listens at
    -- another server of a cluster, keeps its turn too.
    if not is_new or mark ~= 0 then
        call('ZADD', KEYS[4], now_ms + LIVENESS_MS + mark, record)
        call('PEXPIRE', KEYS[4], 2 * LIVENESS_MS)
    end
end
if is_free then
    local fence = promote(value)[token]
    if not waits then
        leave(record)
    end
    if fence then
        return {1, fence}
    end
end
-- The next grant may be made in this very microsecond.
return {0, call('PTTL', KEYS[1]), math.max((call('GET', KEYS[5]) or 0) + 0, now_us - 1)}
