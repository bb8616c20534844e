-- Let a worker go: what it has not done is put back. The last one to leave a crawl that has ended takes
-- the queue along; the record stays, and what failed with all that is needed to try it again.
-- KEYS: see crawl_common.lua
-- ARGV[1]: worker, id (of the crawl), dead (none), finished (nothing stopped it)
-- Reply: {1 if the crawl is over and nobody uses it, waiting, failed}
local fields = call('HMGET', KEYS[1], 'id', 'state')
if fields[1] ~= told.id then
    return {0, 0, 0}
end
release(told.worker)
release_dead()
local is_last, state = call('ZCARD', KEYS[6]) == 0, fields[2]
if is_last and state == 'waiting' and told.finished then
    state = 'ended'
    call('HSET', KEYS[1], 'state', state)
end
local waiting = call('ZCARD', KEYS[2]) + call('ZCARD', KEYS[4])
local is_over, failed = is_last and state == 'ended', call('HLEN', KEYS[8])
if is_over then
    call('UNLINK', unpack(KEYS, 2, 7))
    if failed == 0 then
        call('UNLINK', KEYS[9])
    end
end
return {is_over and 1 or 0, waiting, failed}
