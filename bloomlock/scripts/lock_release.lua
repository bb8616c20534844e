-- Give up a hold, leave the queue, hand the lock on.
-- KEYS: see lock_common.lua
-- ARGV: 1 group (empty: exclusive), 2 token, 3 its record in the queue (empty: it has none)
-- Reply: 1 if the lock was held, else 0
local group, token, record = ARGV[1], ARGV[2], ARGV[3]
local value = forget()
local held = holds(value, token, group)
if held and group ~= '' then
    redis.call('ZREM', KEYS[2], token)
    value = forget()
elseif held then
    redis.call('DEL', KEYS[1])
    value = false
end
if record ~= '' then
    leave(record)
end
promote(value, '')
return held and 1 or 0
