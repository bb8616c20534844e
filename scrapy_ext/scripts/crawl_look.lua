-- Say how a crawl stands.
-- KEYS: see crawl_common.lua
-- Reply: done, workers, by_host (pairs of a host and how many wait, for 1,000 hosts)
local state, done = unpack(call('HMGET', KEYS[1], 'state', 'done'))
local by_host = {}
for _, host in ipairs(call('ZRANGE', KEYS[3], 0, 999)) do
    local count = call('ZLEXCOUNT', KEYS[2], '[' .. host .. '\0', '(' .. host .. '\1')
    by_host[#by_host + 1] = {host, count}
end
return answer(state, {done = tonumber(done or 0), workers = call('ZRANGE', KEYS[6], 0, -1),
    by_host = by_host})
