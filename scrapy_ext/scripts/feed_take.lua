-- End the leases of messages that are done, put back those whose leases are over, and take others.
-- KEYS: 1 the messages, as scrapy-redis reads them; 2 sorted set: what is taken, that is an id, its score
--       and the message with spaces between -> server time (ms) at which its lease ends
-- ARGV: 1 "list", "set" or "zset", 2 lease in ms, 3 how many to take, 4 what their ids begin with,
--       then the members of KEYS[2] that are done
-- Reply: the member of KEYS[2] and the message of each that was taken
local call, kind = redis.call, ARGV[1]
local PUSH, POP = {list = 'LPUSH', set = 'SADD'}, {list = 'LPOP', set = 'SPOP', zset = 'ZPOPMAX'}
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

for position = 5, #ARGV do
    call('ZREM', KEYS[2], ARGV[position])
end
for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[2], 0, now_ms)) do
    local score, message = string.match(member, '^%S+ (%S+) (.*)$')
    if kind == 'zset' then
        call('ZADD', KEYS[1], score, message)
    else
        call(PUSH[kind], KEYS[1], message)
    end
    call('ZREM', KEYS[2], member)
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
    local member = ARGV[4] .. position .. ' ' .. score .. ' ' .. message
    call('ZADD', KEYS[2], now_ms + ARGV[2], member)
    taken[#taken + 1] = member
    taken[#taken + 1] = message
end
return taken
