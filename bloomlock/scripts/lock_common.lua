-- What the lock scripts share; put before each of them. The rules stand in
-- bloomlock/locks/protocol/model.py, under the same names.
-- KEYS of every lock script: 1 lock, 2 holders, 3 queue, 4 alive, 5 fence
local LIVENESS_MS = 6000
local FENCE_LIFE_MS = 60000

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local function integer(number)
    return string.format('%.0f', number)
end

-- The value of the lock, or false; holders whose lease is over, or whose lock is gone, are dropped.
local function forget()
    local value = redis.call('GET', KEYS[1])
    if not value then
        return false
    end
    if string.sub(value, 1, 1) ~= '=' then
        return value
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', integer(now_ms))
    local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if last[1] then
        redis.call('PEXPIREAT', KEYS[1], last[2])
        return value
    end
    redis.call('DEL', KEYS[1])
    return false
end

local function holds(value, token, group)
    if group == '' then
        return value == token
    end
    return value == '=' .. group and redis.call('ZSCORE', KEYS[2], token)
end

-- Refreshing never shortens a lease: it may be a late copy of an earlier request. A hold that was
-- granted in this very step has exactly the lease that is given.
local function set_lease(value, token, group, lease_ms, is_new)
    if group == '' then
        if value ~= token then
            redis.call('SET', KEYS[1], token, 'PX', lease_ms)
        elseif is_new or redis.call('PTTL', KEYS[1]) < lease_ms then
            -- Not SET: a server without memory refuses that, and would take the lock from its holder.
            redis.call('PEXPIRE', KEYS[1], lease_ms)
        end
        return
    end
    if not value then
        redis.call('DEL', KEYS[2])
    end
    local before_ms = not is_new and redis.call('ZSCORE', KEYS[2], token) or 0
    redis.call('ZADD', KEYS[2], integer(math.max(now_ms + lease_ms, before_ms)), token)
    local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    redis.call('SET', KEYS[1], '=' .. group, 'PXAT', last[2])
    redis.call('PEXPIREAT', KEYS[2], last[2])
end

-- A clock that was set back leaves the last fence ahead of it: it is kept until it is behind.
local function keep_fence(fence, lease_ms)
    local ahead_ms = math.max(0, math.floor(fence / 1000) - now_ms)
    local life_ms = math.max(FENCE_LIFE_MS, 2 * lease_ms) + ahead_ms
    redis.call('SET', KEYS[5], integer(fence), 'PX', integer(life_ms))
end

local function hold(value, token, group, lease_ms, waiters)
    set_lease(value, token, group, lease_ms)
    local fence = math.max((redis.call('GET', KEYS[5]) or 0) + 1, now_us)
    keep_fence(fence, lease_ms)
    return {1, integer(fence), waiters}
end

-- Whether a message on a channel reaches anybody: '-' is the channel of those who look by themselves.
local function hears(channel)
    if channel == '-' then
        return true
    end
    local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
    return reply.err ~= nil or reply[2] ~= 0
end

local function deaf(record)
    return 'deaf ' .. record
end

local function leave(record)
    redis.call('ZREM', KEYS[3], record)
    redis.call('ZREM', KEYS[4], record, deaf(record))
end

local function is_alive(record, ticket)
    local until_ms = redis.call('ZSCORE', KEYS[4], record)
    if until_ms then
        return tonumber(until_ms) > now_ms
    end
    return math.floor(ticket / 1000) + LIVENESS_MS > now_ms
end

-- Whether a waiter gets to know of a grant, by the message or by looking. One who was reached when
-- it last asked and is not any more keeps its place; it is dead, or comes back by itself.
local function is_reached(record, channel, asker)
    return record == asker or hears(channel) or redis.call('ZSCORE', KEYS[4], deaf(record))
end

-- Grants by token, of those the lock was handed to; and whether any waiter goes before a newcomer.
local function promote(value, asker)
    local granted = {}
    local chosen = nil
    local start = 0
    local is_behind = false
    while true do
        local head = redis.call('ZRANGE', KEYS[3], start, start, 'WITHSCORES')
        local record = head[1]
        if not record then
            return granted, is_behind
        end
        local token, lease_ms, group, channel =
            string.match(record, '^(%S+) (%S+) (%S+) (%S+)$')
        if group == '-' then
            group = ''
        end
        if chosen and group ~= chosen then
            start = start + 1
            is_behind = true
        elseif not is_alive(record, tonumber(head[2])) then
            leave(record)
        elseif not is_reached(record, channel, asker) then
            start = start + 1
        elseif value and (group == '' or value ~= '=' .. group) then
            return granted, true
        else
            leave(record)
            local waiters = redis.call('EXISTS', KEYS[3])
            local grant = hold(value, token, group, tonumber(lease_ms), waiters)
            granted[token] = grant
            -- A server may forbid announcements; the waiter then finds its grant by looking.
            redis.pcall('PUBLISH', channel, token .. ' ' .. grant[2] .. ' ' .. grant[3])
            if group == '' then
                return granted, true
            end
            chosen = group
            value = '=' .. group
        end
    end
end
