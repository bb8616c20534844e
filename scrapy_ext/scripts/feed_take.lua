-- End the leases of messages that are done, put back those whose leases are over, and take others.
-- KEYS: 1 the messages, as scrapy-redis reads them; 2 hash: id -> score, a space, the message that
--       is taken; 3 sorted set: id -> server time (ms) at which its lease ends
-- ARGV: 1 "list", "set" or "zset", 2 lease in ms, 3 how many to take, 4 what their ids begin with,
--       then the ids of those that are done
-- Reply: id and message of each that was taken
local kind, lease_ms, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local call = redis.call
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

for position = 5, #ARGV do
    call('HDEL', KEYS[2], ARGV[position])
    call('ZREM', KEYS[3], ARGV[position])
end

for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now_ms))) do
    local entry = call('HGET', KEYS[2], id)
    if entry then
        local space = string.find(entry, ' ', 1, true)
        local score, message = string.sub(entry, 1, space - 1), string.sub(entry, space + 1)
        if kind == 'list' then
            call('LPUSH', KEYS[1], message)
        elseif kind == 'set' then
            call('SADD', KEYS[1], message)
        else
            call('ZADD', KEYS[1], score, message)
        end
    end
    call('HDEL', KEYS[2], id)
    call('ZREM', KEYS[3], id)
end

local function pop()
    if kind == 'list' then
        return call('LPOP', KEYS[1]), '0'
    elseif kind == 'set' then
        return call('SPOP', KEYS[1]), '0'
    end
    local found = call('ZPOPMAX', KEYS[1])
    return found[1], found[2]
end

local taken = {}
for position = 1, tonumber(ARGV[3]) do
    local message, score = pop()
    if not message then
        break
    end
    local id = prefix .. position
    call('HSET', KEYS[2], id, score .. ' ' .. message)
    call('ZADD', KEYS[3], string.format('%.0f', now_ms + lease_ms), id)
    taken[#taken + 1] = id
    taken[#taken + 1] = message
end
return taken
