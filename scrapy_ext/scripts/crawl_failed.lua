-- Put back or drop the requests that failed.
-- KEYS: see crawl_common.lua
-- ARGV[1]: dead (none), retry
-- Reply: how many
local entries = call('HGETALL', KEYS[8])
for position = 2, #entries, 2 do
    if told.retry then
        local member = string.sub(entries[position],
            string.find(entries[position], '\0', 1, true) + 1)
        local host, rank, rest = split(member)
        put(host .. string.sub(rank, 1, 23) .. '00' .. rest)
    end
end
call('UNLINK', KEYS[8])
if told.retry and #entries > 0 and call('HGET', KEYS[1], 'state') then
    call('HSET', KEYS[1], 'state', 'running')
end
return #entries / 2
