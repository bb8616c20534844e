-- What every lock script begins with; lock_common.lua comes later.
-- KEYS of every lock script: 1 lock, 2 holders, 3 queue, 4 alive, 5 fence
-- A command gets whole numbers below 2^53 digit for digit.
local LIVENESS_MS = 6000
local FENCE_LIFE_MS = 60000
-- Added to the time until which a waiter is alive that no message reached when it last asked.
local DEAF = 0.5
local SHARED = '=read'

local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local function next_fence(lease_ms)
    local fence, life_ms = now_us, math.max(FENCE_LIFE_MS, 2 * lease_ms)
    local last = call('SET', KEYS[5], fence, 'PX', life_ms, 'GET')
    if last and last + 0 >= fence then
        -- Of this very microsecond, or of a clock that was set back: kept until it is behind.
        fence = last + 1
        life_ms = life_ms + math.max(0, math.floor(fence / 1000) - now_ms)
        call('SET', KEYS[5], fence, 'PX', life_ms)
    end
    return fence
end
