-- All other cases of lock_release_free.lua.
value = look(value)
local held = holds(value)
if channel ~= '' then
    leave(record)
end
if held and is_shared then
    call('ZREM', KEYS[2], token)
    end_with_the_last()
    value = look(call('GET', KEYS[1]))
elseif held then
    -- The next holder's token takes the place of this one.
    value = false
end
if not next(promote(value)) and held and not is_shared then
    call('DEL', KEYS[1])
end
return held and 1 or 0
