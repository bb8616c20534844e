-- Let a worker go: what it has not done is put back. The last one to leave a crawl that has ended takes
-- the queue along; the record stays, and what failed with all that is needed to try it again.
-- KEYS: see crawl_common.lua
-- ARGV[1]: worker, id (of the crawl), finished (nothing stopped it)
-- Reply: {1 if the crawl is over and nobody uses it, waiting, failed}
local id, state = unpack(call('HMGET', KEYS[1], 'id', 'state'))
if id ~= told.id then
    return {0, 0, 0}
end
release({told.worker})
release_dead()
local is_last, failed = call('ZCARD', KEYS[6]) == 0, call('HLEN', KEYS[8])
if is_last and state == 'waiting' and told.finished then
    state = 'ended'
    call('HSET', KEYS[1], 'state', state)
end
local reply = {is_last and state == 'ended' and 1 or 0, waiting(), failed}
if reply[1] == 1 then
    call('UNLINK', unpack(KEYS, 2, 7))
end
return reply
