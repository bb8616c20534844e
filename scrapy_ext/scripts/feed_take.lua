-- End the leases of messages that are done, put back those whose leases are over, and take others.
-- KEYS: 1 the messages, as scrapy-redis reads them; 2 hash: id -> score, a space, the message that
--       is taken; 3 sorted set: id -> server time (ms) at which its lease ends
-- ARGV: 1 "list", "set" or "zset", 2 lease in ms, 3 how many to take, 4 what their ids begin with,
--       then the ids of those that are done
-- Reply: id and message of each that was taken
local call, kind = redis.call, ARGV[1]
local PUSH, POP = {list = 'LPUSH', set = 'SADD'}, {list = 'LPOP', set = 'SPOP', zset = 'ZPOPMAX'}
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function end_lease(id)
    call('HDEL', KEYS[2], id)
    call('ZREM', KEYS[3], id)
end

for position = 5, #ARGV do
    end_lease(ARGV[position])
end
for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[3], 0, now_ms)) do
    local score, message = string.match(call('HGET', KEYS[2], id) or '', '^(%S*) (.*)$')
    if kind == 'zset' and score then
        call('ZADD', KEYS[1], score, message)
    elseif score then
        call(PUSH[kind], KEYS[1], message)
    end
    end_lease(id)
end

local taken = {}
for position = 1, tonumber(ARGV[3]) do
    local message, score = call(POP[kind], KEYS[1]), '0'
    if kind == 'zset' then
        message, score = unpack(message)
    end
    if not message then
        break
    end
    local id = ARGV[4] .. position
    call('HSET', KEYS[2], id, score .. ' ' .. message)
    call('ZADD', KEYS[3], now_ms + ARGV[2], id)
    taken[#taken + 1] = id
    taken[#taken + 1] = message
end
return taken
