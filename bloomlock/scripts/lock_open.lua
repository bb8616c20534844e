-- What each lock script begins with. The rules stand in bloomlock/locks/protocol/model.py, under the
-- same names.
-- KEYS of every lock script: 1 lock, 2 holders, 3 queue, 4 alive, 5 fence
-- Commands are what a script costs, and then functions that are made and not called. A command
-- gets whole numbers below 2^53 digit for digit.
local LIVENESS_MS = 6000
local FENCE_LIFE_MS = 60000
local SHARED = string.byte('=')

local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- Whether a message on a channel reaches a client: '-' is the channel of those who look.
local function hears(channel)
    if channel == '-' then
        return true
    end
    local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
    return reply.err ~= nil or reply[2] ~= 0
end
