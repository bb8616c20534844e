-- All other cases of lock_release_plain.lua.
local value = look()
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
    end_with_the_last()
    value = look()
end
promote(value, '')
return held and 1 or 0
