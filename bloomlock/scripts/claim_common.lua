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
    local attempts, max_attempts, error = struct.unpack('>I4I4I4c0', data)
    return {attempts = attempts, max_attempts = max_attempts, error = error}
end

local function write_failure(id, attempts, max_attempts, error, carried)
    local numbers = struct.pack('>I4I4I4', attempts, max_attempts, #error)
    call('HSET', KEYS[4], id, numbers .. error .. carried)
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
