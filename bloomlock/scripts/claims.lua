-- One step of claims on items of one shard, atomic. It may be sent again, and has the same answer then.
-- What is stored stands in bloomlock/filters/claim_lists.py; the rules, under the same names, in
-- tests/support/claim_rules.py.
-- KEYS   1 shard, 2 claims, 3 open, 4 failed, 5 lost, 6 counts, 7 the set of tombstones, 8 fence
-- ARGV   1 the header that the caller expects, 8 bytes, without flags; 2 layout, see slices.lua; 3 the
--        step; 4 to 6 its options; then for each item its id, token, places and one word more
-- Reply  {1, for each item an answer}, or {3, ...}, if the shard has tombstones. Nothing is done, and the
--        reply is {0}, if it has another header, or its tombstones were evicted; {2, number of slices},
--        if that is another one
local LOST_LIFE_MS, LEASE_MS, TOKEN_BYTES = 86400000, 60000, 15
local LEASE_OVER = 'its lease ran out before the work was done'
local SHARD, CLAIMS, OPEN, FAILED, LOST, COUNTS, TOMBSTONES, FENCE = unpack(KEYS)
local call = redis.call

local header, has_set = read_header(SHARD)
if header ~= ARGV[1] then
    return {0}
end
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local step, ids = ARGV[3], {}
for position = 7, #ARGV, 4 do
    ids[#ids + 1] = ARGV[position]
end
local slices, count, dead
if step == 'take' or step == 'commit' then
    slices, count = open_slices(SHARD, ARGV[2], has_set, step == 'commit')
    dead = slices and read_tombstones(slices, TOMBSTONES, header, ids)
    if not dead then
        return slices and {0} or {2, count}
    end
end

local function next_fence()
    local fence = math.max(tonumber(call('GET', FENCE) or 0) + 1, now_us)
    call('SET', FENCE, fence)
    return fence
end

-- The record of an open claim, with its token, or of an item that failed, with the error; nil: none.
local RECORD = '>I8I4I4I2c0'
local function read(key, id)
    local data = call('HGET', key, id)
    if not data then
        return nil
    end
    local record, start = {}, nil
    record.fence, record.attempts, record.max_attempts, record.text, start = struct.unpack(RECORD, data)
    record.carried = string.sub(data, start)
    return record
end

local function write(key, id, record, text)
    local fixed = struct.pack(RECORD, record.fence, record.attempts, record.max_attempts, #text, text)
    call('HSET', key, id, fixed .. record.carried)
end

-- When the lease of a claim ends.
local function lease_of(id)
    local until_ms = tonumber(call('ZSCORE', CLAIMS, id) or now_ms + LEASE_MS)
    -- A claim whose lease was evicted may be a live one.
    call('ZADD', CLAIMS, until_ms, id)
    return until_ms
end

-- Remove a claim; one without a token was counted when it was given back.
local function finish(id, found, counter)
    call('HDEL', OPEN, id)
    call('ZREM', CLAIMS, id)
    if found.text ~= '' then
        call('HINCRBY', COUNTS, counter, 1)
    end
end

-- Remove a claim whose lease is over: its worker cannot commit it any more.
local function expire(id, found)
    if found.text ~= '' then
        call('ZREMRANGEBYSCORE', LOST, '-inf', now_ms - LOST_LIFE_MS)
        call('ZADD', LOST, now_ms, found.text)
    end
    finish(id, found, 'expired')
end

local steps = {}

-- Claim items that are neither done nor claimed. Options: lease in ms, max_attempts, "1": only items whose
-- claims are over. The token: all that the claim may have, the one of a new
-- claim first. The word: what the claim carries.
-- Answers: {"new", token, fence, attempts, if it was over: what it carries}, {"seen"}, {"busy", ms left of
-- the other's lease, what that carries}, {"failed", attempts}, {"gone"}: it was taken over or ended since.
function steps.take(id, tokens, places, carried)
    local lease_ms, max_attempts = tonumber(ARGV[4]), tonumber(ARGV[5])
    local only_expired = ARGV[6] == '1'
    local found = read(OPEN, id)
    local until_ms = found and lease_of(id)
    local is_over, is_held = found and until_ms <= now_ms, found and found.text ~= ''
    if not dead[id] and find_item(slices, places, 1) then
        if is_over then
            -- Else it could be committed after a discard and another worker's commit.
            expire(id, found)
        end
        return {'seen'}
    end
    if is_held and string.find(tokens, found.text, 1, true) then
        call('ZADD', CLAIMS, math.max(until_ms, now_ms + lease_ms), id)
        if not only_expired and carried ~= found.carried then
            -- Another call of the same worker, whose first one was not answered.
            found.carried = carried
            write(OPEN, id, found, found.text)
        end
        return {'new', found.text, found.fence, found.attempts, only_expired and found.carried or nil}
    end
    if only_expired and not is_over then
        return {'gone'}
    end
    if is_held and not is_over then
        return {'busy', until_ms - now_ms, found.carried}
    end
    local failure = read(FAILED, id)
    local record = found or failure or {attempts = 0, max_attempts = 0}
    record.max_attempts = max_attempts > 0 and max_attempts or record.max_attempts
    if found then
        expire(id, found)
    end
    if 0 < record.max_attempts and record.max_attempts <= record.attempts then
        if found then
            write(FAILED, id, found, not is_held and failure and failure.text or LEASE_OVER)
        end
        return {'failed', record.attempts}
    end
    local token = string.sub(tokens, 1, TOKEN_BYTES)
    record.fence, record.attempts = next_fence(), record.attempts + 1
    record.carried = only_expired and record.carried or carried
    write(OPEN, id, record, token)
    call('ZADD', CLAIMS, now_ms + lease_ms, id)
    -- The token of a claim that was not answered may be in use again.
    call('ZREM', LOST, token)
    call('HINCRBY', COUNTS, 'claimed', 1)
    return {'new', token, record.fence, record.attempts, only_expired and record.carried or nil}
end

-- Add items and end their claims. Answers: 1; 0 if the claim was taken over; -1 if there is none: the item
-- was committed by an earlier call, whose answer was lost, and was discarded or claimed since; or the claim
-- was taken over so long ago that its token is forgotten.
function steps.commit(id, token, places)
    local found = read(OPEN, id)
    if call('ZSCORE', LOST, token) then
        return 0
    end
    if (found and found.text ~= token) or (dead[id] and not found) then
        return -1
    end
    add_item(slices, places, 1, true, TOMBSTONES, dead[id] and id)
    dead[id] = false
    call('HDEL', FAILED, id)
    if found then
        finish(id, found, 'committed')
    end
    return 1
end

-- Give items back. Option: "+" and why the work failed, empty if it did not. The word: when the item is
-- found again, "never", "after" its lease, or "now". Answers: 1, or 0 if the claim was over already.
function steps.abandon(id, token, _, offered)
    local error, counter = ARGV[4], 'failed'
    local found = read(OPEN, id)
    if not found or found.text ~= token then
        return 0
    end
    if error == '' then
        -- One that was retried since has no attempts.
        found.attempts, counter = math.max(0, found.attempts - 1), 'abandoned'
    elseif found.max_attempts > 0 then
        write(FAILED, id, found, string.sub(error, 2))
    end
    local until_ms = offered == 'now' and now_ms or lease_of(id)
    local is_final = 0 < found.max_attempts and found.max_attempts <= found.attempts
    finish(id, found, counter)
    if offered ~= 'never' and not is_final then
        write(OPEN, id, found, '')
        call('ZADD', CLAIMS, until_ms, id)
    end
    return 1
end

-- Let claims live on. It makes none, and shortens no lease. The word: ms from now, at least. Answers: 1,
-- or 0 if the claim is over.
function steps.renew(id, token, _, lease_ms)
    local found = read(OPEN, id)
    local is_own = found and found.text == token
    if is_own then
        call('ZADD', CLAIMS, math.max(lease_of(id), now_ms + lease_ms), id)
    end
    return is_own and 1 or 0
end

-- "retry": offer items that failed, or whose claims are over, at once and with no attempts counted. "drop":
-- forget them. Answers: 1; 0: there was none, or a worker has one that was to be dropped.
function steps.retry(id)
    local retries = step == 'retry'
    local found, failure = read(OPEN, id), read(FAILED, id)
    local record = found or failure
    local is_live = found and found.text ~= '' and lease_of(id) > now_ms
    if is_live or not record then
        return record and retries and 1 or 0
    end
    call('HDEL', FAILED, id)
    if retries then
        record.attempts = 0
        record.fence = found and found.fence or next_fence()
        write(OPEN, id, record, found and found.text or '')
        call('ZADD', CLAIMS, now_ms, id)
    elseif found then
        expire(id, found)
    end
    return 1
end

steps.drop = steps.retry

-- The word: a number. The answer: the records of at most that many claims, those first whose leases ended
-- first.
function steps.expired(_, _, _, most)
    local records = {}
    for _, id in ipairs(call('ZRANGEBYSCORE', CLAIMS, '-inf', now_ms, 'LIMIT', 0, most)) do
        local record = call('HGET', OPEN, id)
        if record then
            records[#records + 1] = record
        else
            call('ZREM', CLAIMS, id)
        end
    end
    return records
end

local reply = {has_set and 3 or 1}
for i, id in ipairs(ids) do
    reply[i + 1] = steps[step](id, ARGV[4 * i + 4], ARGV[4 * i + 5], ARGV[4 * i + 6])
end
expire_with(unpack(KEYS))
return reply
