-- What the claim scripts share; put before each of them. The same rules stand in
-- tests/support/claim_rules.py, under the same names.
-- KEYS of every claim script: 1 shard, 2 claims, 3 open, 4 failed, 5 lost, 6 waiting, 7 counts,
--          8 the set of tombstones
-- ARGV[1]  the header the caller expects, 8 bytes, without flags, and the layout; see slices.lua
-- Reply    {header found, ...}; {header found} alone, and nothing written, if it is another one; and
--          nothing written, by scripts that read bits: {"lost"}, if the tombstones were evicted, or
--          {"grown", number of slices}, if that is another one
local LOST_LIFE_MS = 86400000
local LEASE_OVER = 'its lease ran out before the work was done'
local call = redis.call

local header, has_set, found_header = read_header(KEYS[1])
if header ~= string.sub(ARGV[1], 1, 8) then
    return {found_header}
end
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local function integer(number)
    return string.format('%.0f', number)
end

-- Every step-th argument from the first on.
local function every(first, step)
    local some = {}
    for position = first, #ARGV, step do
        some[#some + 1] = ARGV[position]
    end
    return some
end

-- What a key has for members, false where it has nothing.
local function read(command, key, members)
    local found, values = call(command, key, unpack(members)), {}
    for i, member in ipairs(members) do
        values[member] = found[i]
    end
    return values
end

local function write(command, key, words)
    if words[1] then
        call(command, key, unpack(words))
    end
end

-- Let some keys, which may have been made just now, expire with the shard.
local function expire_with_shard(first, last)
    local left_ms = call('PTTL', KEYS[1])
    if left_ms >= 0 then
        for i = first, last do
            -- 0 in its last millisecond; PEXPIRE 0 would delete it.
            call('PEXPIRE', KEYS[i], math.max(left_ms, 1))
        end
    end
end

-- What is left of an earlier generation goes, but for the fence.
local known = call('HMGET', KEYS[7], 'header', 'fence')
local last_fence = tonumber(known[2] or 0)
if known[1] ~= header then
    call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
    call('HSET', KEYS[7], 'header', header, 'fence', integer(last_fence))
    expire_with_shard(7, 7)
end
local first_fence = last_fence

-- All items of a call are read by one command of a kind, and written by one at the end.
local ids, open, failed, leases
local new_records, new_leases, over, cured, raised, counted = {}, {}, {}, {}, {}, {}
-- The leases that this call has set, by id: they are written at the end.
local set_leases = {}

-- Say which items the script is for.
local function use(items)
    ids, open = items, read('HMGET', KEYS[3], items)
end

-- Where bits and tombstones of the items are read.
local slices, dead

-- Read the tombstones; return why that is not possible, as a reply. `adds`: as of open_slices.
local function read_shard(adds)
    local number
    slices, number = open_slices(KEYS[1], string.sub(ARGV[1], 9), now_us, adds)
    if not slices then
        return {'grown', number}
    end
    dead = has_set and read_tombstones(slices, KEYS[8], header, ids) or not has_set and {}
    return not dead and {'lost'}
end

-- Write everything, and return the reply.
local function done(reply)
    write('HSET', KEYS[3], new_records)
    write('ZADD', KEYS[2], new_leases)
    write('HDEL', KEYS[3], over)
    write('ZREM', KEYS[2], over)
    write('HDEL', KEYS[4], cured)
    if raised[1] then
        remove_tombstones(slices, KEYS[8], raised)
    end
    if last_fence > first_fence then
        call('HSET', KEYS[7], 'fence', integer(last_fence))
    end
    for counter, number in pairs(counted) do
        call('HINCRBY', KEYS[7], counter, number)
    end
    expire_with_shard(2, #KEYS)
    return reply
end

local function read_record(id)
    local data = open[id]
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
    local at = #new_records
    open[id] = numbers .. record.token .. record.carried
    new_records[at + 1], new_records[at + 2] = id, open[id]
end

local function read_failure(id)
    failed = failed or read('HMGET', KEYS[4], ids)
    local data = failed[id]
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
    local data = numbers .. error .. token .. carried
    call('HSET', KEYS[4], id, data)
    if failed then
        failed[id] = data
    end
end

local function next_fence()
    last_fence = math.max(last_fence + 1, now_us)
    return last_fence
end

-- When a claim's lease ends; nil: the deadline is missing.
local function deadline_of(id)
    if set_leases[id] then
        return set_leases[id]
    end
    leases = leases or read('ZMSCORE', KEYS[2], ids)
    return tonumber(leases[id] or nil)
end

local function set_lease(id, until_ms)
    local at = #new_leases
    new_leases[at + 1], new_leases[at + 2] = integer(until_ms), id
    set_leases[id] = until_ms
end

-- Note that the claim of another worker is lost to it.
local function take_over(token)
    call('ZREMRANGEBYSCORE', KEYS[5], '-inf', integer(now_ms - LOST_LIFE_MS))
    call('ZADD', KEYS[5], integer(now_ms), token)
end

-- Whether a worker has the item; it may, if the deadline is missing.
local function is_live(id, found)
    if not found or found.token == '' then
        return false
    end
    local until_ms = deadline_of(id)
    return not (until_ms and until_ms <= now_ms)
end

local function forget_failure(id, failure)
    if failure then
        call('HDEL', KEYS[4], id)
        failed[id] = false
        if failure.token ~= '' then
            take_over(failure.token)
        end
    end
end

local function count(counter)
    counted[counter] = (counted[counter] or 0) + 1
end

-- Wake those who wait for the end of a claim.
local function wake(id)
    local entries = call('HGET', KEYS[6], id)
    if entries then
        call('HDEL', KEYS[6], id)
        for channel, token in string.gmatch(entries, '(%S+) (%S+);') do
            -- A server may forbid announcements; the waiter then finds out by looking.
            redis.pcall('PUBLISH', channel, token)
        end
    end
end

-- Remove a claim; one without a token was counted when it was given back.
local function finish(id, record, counter)
    open[id] = false
    over[#over + 1] = id
    if record.token ~= '' then
        count(counter)
    end
    wake(id)
end
