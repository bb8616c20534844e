-- One step of claims on items of one shard, atomic. It may be sent again, and has the same answer then.
-- What is stored stands in bloomlock/claims.py; the rules, under the same names, in
-- tests/support/claim_rules.py.
-- KEYS   1 shard, 2 claims, 3 open, 4 failed, 5 lost, 6 counts, 7 the set of tombstones, 8 fence
-- ARGV   1 the header that the caller expects, 8 bytes, without flags; 2 layout, see slices.lua; 3 the
--        step; 4 to 6 its options; then for each item its id, token, places and one word more
-- Reply  {1, for each item an answer}, or {3, ...}, if the shard has tombstones. Nothing is done, and the
--        reply is {0}, if it has another header, or its tombstones were evicted; {2, number of slices},
--        if that is another one
local LOST_LIFE_MS, LEASE_MS = 86400000, 60000
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

local slices, number, dead
if step == 'take' or step == 'commit' then
    slices, number = open_slices(SHARD, ARGV[2], has_set, step == 'commit')
    dead = slices and read_tombstones(slices, TOMBSTONES, header, ids)
    if not slices or not dead then
        return slices and {0} or {2, number}
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

-- From now on the worker of a claim cannot commit it.
local function take_over(token)
    if token ~= '' then
        call('ZREMRANGEBYSCORE', LOST, '-inf', now_ms - LOST_LIFE_MS)
        call('ZADD', LOST, now_ms, token)
    end
end

-- Remove a claim; one without a token was counted when it was given back.
local function finish(id, found, counter)
    call('HDEL', OPEN, id)
    call('ZREM', CLAIMS, id)
    if found.text ~= '' then
        call('HINCRBY', COUNTS, counter, 1)
    end
end

local steps = {}

-- Claim items that are neither done nor claimed. Options: lease in ms, max_attempts, "1": only items whose
-- claims are over. The word: what the claim carries.
-- Answers: {"new", fence, attempts, if it was over: what it carries}, {"seen"}, {"busy", ms left of the
-- other's lease, what that carries}, {"failed", attempts}, {"gone"}: it was taken over or ended since.
function steps.take(id, token, places, carried)
    local lease_ms, max_attempts = tonumber(ARGV[4]), tonumber(ARGV[5])
    local only_expired = ARGV[6] == '1'
    local found = read(OPEN, id)
    local until_ms = found and lease_of(id)
    local is_over = found and until_ms <= now_ms
    if not dead[id] and find_item(slices, places, 1) then
        if is_over then
            -- Else it could be committed after a discard and another worker's commit.
            take_over(found.text)
            finish(id, found, 'expired')
        end
        return {'seen'}
    end
    if found and found.text == token then
        call('ZADD', CLAIMS, math.max(until_ms, now_ms + lease_ms), id)
        if not only_expired and carried ~= found.carried then
            -- Another call of the same worker, whose first one was not answered.
            found.carried = carried
            write(OPEN, id, found, token)
        end
        return {'new', found.fence, found.attempts, only_expired and found.carried or nil}
    end
    if only_expired and not is_over then
        return {'gone'}
    end
    if found and found.text ~= '' and not is_over then
        return {'busy', until_ms - now_ms, found.carried}
    end
    local failure = read(FAILED, id)
    local attempts = math.max(found and found.attempts or 0, failure and failure.attempts or 0)
    if max_attempts == 0 and (found or failure) then
        max_attempts = (found or failure).max_attempts
    end
    if 0 < max_attempts and max_attempts <= attempts then
        if found then
            found.attempts, found.max_attempts = attempts, max_attempts
            write(FAILED, id, found, found.text == '' and failure and failure.text or LEASE_OVER)
            take_over(found.text)
            finish(id, found, 'expired')
        end
        return {'failed', attempts}
    end
    if found and found.text ~= '' then
        take_over(found.text)
        call('HINCRBY', COUNTS, 'expired', 1)
    end
    local made = {
        fence = next_fence(),
        attempts = attempts + 1,
        max_attempts = max_attempts,
        carried = only_expired and found.carried or carried,
    }
    write(OPEN, id, made, token)
    call('ZADD', CLAIMS, now_ms + lease_ms, id)
    -- The token of a claim that was not answered may be in use again.
    call('ZREM', LOST, token)
    call('HINCRBY', COUNTS, 'claimed', 1)
    return {'new', made.fence, made.attempts, only_expired and made.carried or nil}
end

-- Add items and end their claims. Answers: 1, or 0 if another worker claimed the item since, or its claim
-- is over and it was discarded since.
function steps.commit(id, token, places)
    local found = read(OPEN, id)
    local is_own = found and found.text == token
    -- Without a record of its own the commit was carried out before, and this one is a repetition, or a
    -- late one. If the item has a tombstone it was discarded since, which must not be undone.
    if call('ZSCORE', LOST, token) or ((found or dead[id]) and not is_own) then
        return 0
    end
    put_item(slices, places, 1)
    call('HDEL', FAILED, id)
    if dead[id] then
        remove_tombstones(slices, TOMBSTONES, {id})
        dead[id] = false
    end
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
    if offered == 'never' or (0 < found.max_attempts and found.max_attempts <= found.attempts) then
        finish(id, found, counter)
        return 1
    end
    write(OPEN, id, found, '')
    if offered == 'now' then
        call('ZADD', CLAIMS, now_ms, id)
    end
    call('HINCRBY', COUNTS, counter, 1)
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
        take_over(found.text)
        finish(id, found, 'expired')
    end
    return 1
end

steps.drop = steps.retry

local reply = {has_set and 3 or 1}
for i, id in ipairs(ids) do
    reply[i + 1] = steps[step](id, ARGV[4 * i + 4], ARGV[4 * i + 5], ARGV[4 * i + 6])
end
if step == 'expired' then
    -- No items: the answers are the records of the claims that have been over for longest, as many as the
    -- option says at most.
    local over = call('ZRANGEBYSCORE', CLAIMS, '-inf', now_ms, 'LIMIT', 0, ARGV[4])
    for _, id in ipairs(over) do
        local record = call('HGET', OPEN, id)
        if record then
            reply[#reply + 1] = record
        else
            call('ZREM', CLAIMS, id)
        end
    end
end

expire_with(unpack(KEYS))
return reply
