-- What the claim scripts share; put before each of them. The same rules stand in
-- tests/support/claim_rules.py, under the same names.
-- KEYS of every claim script: 1 shard, 2 claims, 3 open, 4 failed, 5 lost, 6 waiting, 7 counts,
--          8 the versions of forgotten items
-- ARGV[1]  the header the caller expects, 8 bytes, without what says that items were forgotten or
--          that the shard has grown; of a filter with a time window behind it "w" and what cells.lua
--          reads, of one that grows "s" and the bits of an item in each slice, a byte each
-- Reply    {header found, ...}; {header found} alone, and nothing written, if it is another one
local LOST_LIFE_MS = 86400000
local LEASE_OVER = 'its lease ran out before the work was done'
local BITS_PER_CALL = 400
local call = redis.call

local header, more_slices, forgets = read_header(KEYS[1])
local num_slices = more_slices + 1
if header ~= string.sub(ARGV[1], 1, 8) then
    return {header}
end
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- See cells.lua; nil without a time window.
local window
-- Of a filter that grows: the slice of each bit of an item; else nil.
local slice_at
local has_grown = false
local kind_of_filter = string.sub(ARGV[1], 9, 9)
if kind_of_filter == 'w' then
    window = read_window(string.sub(ARGV[1], 10), KEYS[1], now_us)
elseif kind_of_filter == 's' then
    slice_at = {}
    for slice, bits in ipairs({string.byte(ARGV[1], 10, -1)}) do
        for _ = 1, bits do
            slice_at[#slice_at + 1] = slice
        end
    end
    has_grown = slice_at[#slice_at] ~= num_slices
end

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
local new_records, new_leases, over, cured, counted = {}, {}, {}, {}, {}
-- The leases that this call has set, by id: they are written at the end.
local set_leases = {}

-- Say which items the script is for.
local function use(items)
    ids, open = items, read('HMGET', KEYS[3], items)
end

-- Cut off the versions behind the places of items, six bytes each; return the versions that items
-- have where these are other ones.
local function other_versions(places)
    local others = {}
    local versions = forgets and read('HMGET', KEYS[8], ids) or {}
    for i, id in ipairs(ids) do
        local believed = ''
        if #places[i] % 4 ~= 0 then
            believed = string.sub(places[i], -6)
            places[i] = string.sub(places[i], 1, -7)
        end
        local version = versions[id] or ''
        if version ~= believed then
            others[i] = version
        end
    end
    return others
end

-- Write everything, and return the reply.
local function done(reply)
    write('HSET', KEYS[3], new_records)
    write('ZADD', KEYS[2], new_leases)
    write('HDEL', KEYS[3], over)
    write('ZREM', KEYS[2], over)
    write('HDEL', KEYS[4], cured)
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

-- Test the bits of items, or set them, those of the newest slice; return for each item that is tested
-- whether it is there.
local function bits_of(items, command, operation)
    local kind, shift, live = 'u1', 0, nil
    if window and operation == 'SET' then
        shift = window.added
    elseif window then
        kind, live = window.kind, window.live
    end
    local words, owners, all_set, missing, num_bits = {}, {}, {}, {}, 0
    for item, places in ipairs(items) do
        all_set[item] = live or true
        local first = 1
        if slice_at and operation == 'SET' then
            while slice_at[first] ~= num_slices do
                first = first + 1
            end
        end
        for start = 4 * first - 3, #places, 4 do
            local a, b, c, d = string.byte(places, start, start + 3)
            local at = #words
            words[at + 1] = operation
            words[at + 2] = kind
            words[at + 3] = ((a * 256 + b) * 256 + c) * 256 + d + shift
            if operation == 'SET' then
                words[at + 4] = 1
            end
            num_bits = num_bits + 1
            if operation == 'GET' then
                owners[num_bits] = slice_at and 16 * item + slice_at[(start + 3) / 4] or item
            end
        end
        if num_bits >= BITS_PER_CALL or item == #items then
            local found = call(command, KEYS[1], unpack(words))
            for i = 1, #owners do
                local bits = found[i]
                if slice_at then
                    missing[owners[i]] = missing[owners[i]] or bits == 0
                elseif live then
                    all_set[owners[i]] = bit.band(all_set[owners[i]], bits)
                elseif bits == 0 then
                    all_set[owners[i]] = false
                end
            end
            words, owners, num_bits = {}, {}, 0
        end
    end
    for item = 1, live and #items or 0 do
        all_set[item] = all_set[item] ~= 0
    end
    for item = 1, slice_at and #items or 0 do
        all_set[item] = false
        for slice = 1, num_slices do
            all_set[item] = all_set[item] or not missing[16 * item + slice]
        end
    end
    return all_set
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
