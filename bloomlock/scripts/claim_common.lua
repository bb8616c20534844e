-- What the claim scripts share; put before each of them. The rules stand in
-- bloomlock/claims/model.py, under the same names.
-- KEYS of every claim script: 1 shard, 2 claims, 3 open, 4 failed, 5 lost, 6 waiting, 7 counts
-- ARGV[1]  the header the caller expects, 8 bytes
-- Reply    {header found, ...}; {header found} alone, and nothing written, if it is another one
local LOST_LIFE_MS = 86400000
local LEASE_OVER = 'its lease ran out before the work was done'
local call = redis.call

local header = call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] then
    return {header}
end
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local function integer(number)
    return string.format('%.0f', number)
end

-- What is left of an earlier generation goes, but for the fence.
local counted = call('HMGET', KEYS[7], 'header', 'fence')
local last_fence = tonumber(counted[2] or 0)
if counted[1] ~= header then
    call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
    call('HSET', KEYS[7], 'header', header, 'fence', integer(last_fence))
end

local function read_record(data)
    if not data then
        return nil
    end
    local fence, attempts, max_attempts, token, start = struct.unpack('>I8I4I4Bc0', data)
    return {
        token = token,
        fence = fence,
        attempts = attempts,
        max_attempts = max_attempts,
        carried = string.sub(data, start),
    }
end

local function write_record(id, record)
    local numbers = struct.pack(
        '>I8I4I4B', record.fence, record.attempts, record.max_attempts, #record.token)
    call('HSET', KEYS[3], id, numbers .. record.token .. record.carried)
end

local function read_failure(data)
    if not data then
        return nil
    end
    local attempts, max_attempts, of_error, of_token = struct.unpack('>I4I4I4B', data)
    local token = 14 + of_error
    return {
        attempts = attempts,
        max_attempts = max_attempts,
        error = string.sub(data, 14, token - 1),
        token = string.sub(data, token, token + of_token - 1),
        carried = string.sub(data, token + of_token),
    }
end

local function write_failure(id, attempts, max_attempts, error, token, carried)
    local numbers = struct.pack('>I4I4I4B', attempts, max_attempts, #error, #token)
    call('HSET', KEYS[4], id, numbers .. error .. token .. carried)
end

local function next_fence()
    last_fence = math.max(last_fence + 1, now_us)
    call('HSET', KEYS[7], 'fence', integer(last_fence))
    return last_fence
end

local function set_lease(id, until_ms)
    call('ZADD', KEYS[2], integer(until_ms), id)
end

-- Note that the claim of another worker is lost to it.
local function take_over(token)
    call('ZREMRANGEBYSCORE', KEYS[5], '-inf', integer(now_ms - LOST_LIFE_MS))
    call('ZADD', KEYS[5], integer(now_ms), token)
end

-- Whether a worker has the item; it may, if the deadline is missing.
local function is_live(id, found)
    local until_ms = tonumber(call('ZSCORE', KEYS[2], id) or nil)
    return found and found.token ~= '' and not (until_ms and until_ms <= now_ms)
end

local function forget_failure(id, failure)
    call('HDEL', KEYS[4], id)
    if failure and failure.token ~= '' then
        take_over(failure.token)
    end
end

local function count(counter)
    call('HINCRBY', KEYS[7], counter, 1)
end

-- A BITFIELD command for all bits of an item: GET, or SET with the value 1.
local function bitfield(places, operation)
    local words = {}
    for start = 1, #places, 4 do
        local a, b, c, d = string.byte(places, start, start + 3)
        local at = #words
        words[at + 1] = operation
        words[at + 2] = 'u1'
        words[at + 3] = ((a * 256 + b) * 256 + c) * 256 + d
        if operation == 'SET' then
            words[at + 4] = 1
        end
    end
    return unpack(words)
end

local function is_seen(places)
    for _, bit in ipairs(call('BITFIELD_RO', KEYS[1], bitfield(places, 'GET'))) do
        if bit == 0 then
            return false
        end
    end
    return true
end

local function wake(id)
    local waiting = call('HGET', KEYS[6], id)
    if waiting then
        call('HDEL', KEYS[6], id)
        for channel, token in string.gmatch(waiting, '(%S+) (%S+);') do
            -- A server may forbid announcements; the waiter then finds out by looking.
            redis.pcall('PUBLISH', channel, token)
        end
    end
end

-- Remove a claim; one without a token was counted when it was given back.
local function finish(id, record, counter)
    call('HDEL', KEYS[3], id)
    call('ZREM', KEYS[2], id)
    if record.token ~= '' then
        count(counter)
    end
    wake(id)
end
