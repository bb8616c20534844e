-- What every lock script begins with; lock_common.lua comes later.
-- KEYS: 1 lock, 2 holders, 3 queue, 4 alive, 5 fence
-- ARGV: 1 'read' to share the lock with readers, else '-'; 2 lease in ms, 3 lease in ms of a grant
--       that is announced, 4 channel for that (empty: not willing to wait), 5 token
local is_shared, lease_ms, channel, token = ARGV[1] == 'read', tonumber(ARGV[2]), ARGV[4], ARGV[5]
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
