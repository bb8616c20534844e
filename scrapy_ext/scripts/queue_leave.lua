-- Let a worker go: what it has not done is put back.
-- KEYS: see queue_common.lua
-- ARGV: 3 "1" to empty the queue if no other worker is there
-- Reply: {1 if it was emptied, how many requests wait}
release(worker)
release_dead()
if call('ZCARD', KEYS[3]) == 0 then
    if ARGV[3] == '1' then
        call('UNLINK', unpack(KEYS))
        return {1, 0}
    end
    if length() == 0 then
        call('UNLINK', KEYS[5])
    end
end
return {0, length()}
