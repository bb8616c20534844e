-- What the scripts of a crawl share; put before each of them.
-- KEYS: 1 crawl    hash: id, state, begun (ms), turn, done, generation, attributes
--       2 queue    sorted set, all scores 0: host NUL rank NUL entry, where rank is the priority (8 hex
--                  digits, the first one is fetched first), 1 for a start request, else 0, the turn
--                  (14 hex digits) and how often it failed (2 hex digits)
--       3 hosts    sorted set: host -> time (ms) from which its next request may be taken
--       4 later    sorted set: member of the queue -> time (ms) at which it gets there
--       5 taken    hash: worker:turn -> member of the queue
--       6 workers  sorted set: worker -> time (ms) at which its lease ends
--       7 steps    hash: worker -> its last step, as JSON
--       8 failed   hash: turn -> error NUL member of the queue
-- ARGV[1]: a JSON object
-- Reply: a JSON object: state (empty: there is no crawl), waiting, taken, failed, and what each script adds
local call, told = redis.call, cjson.decode(ARGV[1])
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local RANK, HIGHEST_TURN = 25, 2^52

local function waiting()
    return call('ZCARD', KEYS[2]) + call('ZCARD', KEYS[4])
end

-- Return what a script says of the crawl as a JSON object, to which it adds what its header names.
local function answer(state, more)
    more.state, more.waiting, more.taken, more.failed = state or '', waiting(), call('HLEN', KEYS[5]),
        call('HLEN', KEYS[8])
    return cjson.encode(more)
end

-- Return host and rank of a member, and what comes after them.
local function split(member)
    local host = string.find(member, '\0', 1, true)
    return string.sub(member, 1, host), string.sub(member, host + 1, host + RANK),
        string.sub(member, host + RANK + 1)
end

local function turn_of(member)
    local _, rank = split(member)
    return string.sub(rank, 10, 23)
end

local function put(member)
    call('ZADD', KEYS[2], 0, member)
    -- One that has just been fetched from stays until it is due again.
    call('ZADD', KEYS[3], 'NX', 0, string.sub(split(member), 1, -2))
end

-- Return the place in its order of what is queued now.
local function next_turn(is_last)
    local turn = call('HINCRBY', KEYS[1], 'turn', 1)
    return string.format('%014x', is_last and turn or HIGHEST_TURN - turn)
end

-- Put back what workers have taken, where it was, and forget them; return how many requests.
local function release(workers)
    local count = 0
    for _, worker in ipairs(workers) do
        for _, id in ipairs(call('HKEYS', KEYS[5])) do
            if string.sub(id, 1, #worker + 1) == worker .. ':' then
                put(call('HGET', KEYS[5], id))
                count = count + call('HDEL', KEYS[5], id)
            end
        end
        call('ZREM', KEYS[6], worker)
        call('HDEL', KEYS[7], worker)
    end
    return count
end

-- Put back what workers had that are known to be dead, or whose leases are over.
local function release_dead()
    return release(told.dead or {}) + release(call('ZRANGEBYSCORE', KEYS[6], 0, '(' .. now_ms))
end

local function hold_lease()
    call('ZADD', KEYS[6], now_ms + told.lease, told.worker)
end
