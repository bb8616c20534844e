-- What the scripts of the queue share; put before each of them.
-- KEYS[1]  queue    the requests that wait, as scrapy-redis keeps them: a sorted set or a list
-- KEYS[2]  taken    hash: worker:call:number -> score, a space, the request
-- KEYS[3]  workers  sorted set: worker -> server time (ms) at which its lease ends
-- KEYS[4]  calls    hash: worker -> number of its last call, how many it took, its answers
-- KEYS[5]  started  set: fingerprints of the start requests of this run
-- ARGV[1]  order of the queue: "priority", "fifo" or "lifo"
-- ARGV[2]  the worker; it contains no colon
local order, worker = ARGV[1], ARGV[2]
local call = redis.call
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function length()
    return call(order == 'priority' and 'ZCARD' or 'LLEN', KEYS[1])
end

local function push(score, request)
    if order == 'priority' then
        call('ZADD', KEYS[1], score, request)
    else
        call('LPUSH', KEYS[1], request)
    end
end

-- Put a request where it is taken next.
local function put_back(score, request)
    if order == 'fifo' then
        call('RPUSH', KEYS[1], request)
    else
        push(score, request)
    end
end

-- Put back all that a worker has taken, and forget the worker; return the requests.
local function release(one)
    local ids, requests, mine = {}, {}, one .. ':'
    for _, id in ipairs(call('HKEYS', KEYS[2])) do
        if string.sub(id, 1, #mine) == mine then
            ids[#ids + 1] = id
        end
    end
    -- What was taken first is put back last, so it is taken first again.
    table.sort(ids, function(a, b) return a > b end)
    for position, id in ipairs(ids) do
        local entry = call('HGET', KEYS[2], id)
        local space = string.find(entry, ' ', 1, true)
        requests[position] = string.sub(entry, space + 1)
        put_back(string.sub(entry, 1, space - 1), requests[position])
        call('HDEL', KEYS[2], id)
    end
    call('ZREM', KEYS[3], one)
    call('HDEL', KEYS[4], one)
    return requests
end

-- Put back what workers had whose leases are over; return how many requests.
local function release_dead()
    local released = 0
    for _, dead in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', now_ms))) do
        released = released + #release(dead)
    end
    return released
end
