-- Let workers go that are known to be dead: what they have not done is put back.
-- KEYS: see queue_common.lua
-- ARGV: 2 is not used; 3 and the following: the workers
-- Reply: the requests that were put back
local requests = {}
for position = 3, #ARGV do
    for _, request in ipairs(release(ARGV[position])) do
        requests[#requests + 1] = request
    end
end
return requests
