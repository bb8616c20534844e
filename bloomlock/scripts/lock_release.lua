-- Give up a hold, leave the queue, hand the lock on.
-- KEYS: see lock_common.lua
-- ARGV: 1 group (empty: exclusive), 2 token, 3 its record in the queue (empty: it has none)
-- Reply: 1 if the lock was held, else 0
local group, token, record = ARGV[1], ARGV[2], ARGV[3]
local value = forget()
local held = holds(value, token, group)
if record ~= '' then
    leave(record)
end
if held and group == '' then
    -- The next holder's token takes the place of this one.
    if not next((promote(false, ''))) then
        call('DEL', KEYS[1])
    end
    return 1
end
if held then
    call('ZREM', KEYS[2], token)
    value = forget()
end
promote(value, '')
return held and 1 or 0
