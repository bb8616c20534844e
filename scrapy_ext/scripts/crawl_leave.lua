-- Let a worker go: what it has not done is put back. The last one to leave a crawl that has ended takes
-- the queue along; the record stays, and what failed with all that is needed to try it again.
-- KEYS: see crawl_common.lua
-- ARGV[1]: worker, id (of the crawl), finished (nothing stopped it)
-- Reply: is_over (nobody uses it)
local id, state = unpack(call('HMGET', KEYS[1], 'id', 'state'))
if id ~= told.id then
    return cjson.encode({state = 'gone'})
end
release({told.worker})
release_dead()
local is_last = call('ZCARD', KEYS[6]) == 0
if is_last and state == 'waiting' and told.finished then
    state = 'ended'
    call('HSET', KEYS[1], 'state', state)
end
local is_over = is_last and state == 'ended'
if is_over then
    call('UNLINK', unpack(KEYS, 2, 7))
end
return answer(state, {is_over = is_over})
