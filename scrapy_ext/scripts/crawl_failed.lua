-- Put back or drop the requests that failed.
-- KEYS: see crawl_common.lua
-- ARGV[1]: retry
-- Reply: recovered (how many)
local kept = call('HVALS', KEYS[8])
for _, value in ipairs(told.retry and kept or {}) do
    local host, rank, rest = split(string.sub(value, string.find(value, '\0', 1, true) + 1))
    put(host .. string.sub(rank, 1, 23) .. '00' .. rest)
end
call('UNLINK', KEYS[8])
if told.retry and #kept > 0 and call('HGET', KEYS[1], 'state') then
    call('HSET', KEYS[1], 'state', 'running')
end
return answer(nil, {recovered = #kept})
