-- Test, add, refresh or discard items of one shard; all in one step.
-- KEYS     1 the shard, 2 the set of its tombstones: the header without its flag, and identities; with a
--          window it is sorted, and the scores are epochs; left out with the identities
-- ARGV     1 the header that the caller expects, 8 bytes, without flags; 2 "t" test, "a" add, "r" add or
--          refresh, "d" discard (without items: only make the set); 3 layout, 4 places, see slices.lua,
--          empty if the bits of the items are all set, for certain; 5 identities of the items, 16 bytes
--          each; they may be left out where nothing was discarded
-- Reply    {header found, for each item "1" if it was there, else "0"}. Nothing is done, and the reply
--          is {header}, if it is another one or identities are missing; {header, number of slices},
--          if that is another one; {header, "lost"}, if the tombstones were evicted
-- Sent once, but for "t": what it added or discarded is seen by the next call.
local key, set, op, places = KEYS[1], KEYS[2], ARGV[2], ARGV[4]
local call = redis.call
local header, has_set, found = read_header(key)
if header ~= ARGV[1] or (has_set and not ARGV[5]) then
    return {found}
end
local slices, count = open_slices(key, ARGV[3], has_set, op == 'a' or op == 'r')
if not slices then
    return {found, count}
end
local identities = {}
for start = 1, #(ARGV[5] or ''), 16 do
    identities[#identities + 1] = string.sub(ARGV[5], start, start + 15)
end
local dead = read_tombstones(slices, set, header, identities)
if not dead then
    return {found, 'lost'}
end

local function put_tombstone(epoch, member)
    if slices.is_window then
        call('ZADD', set, epoch, member)
    else
        call('SADD', set, member)
    end
end

-- Set and flag are made together, and no set is made for a header that has the flag: so a set without
-- the sentinel is never taken for one that nothing was put into.
local function make_set()
    call('UNLINK', set)
    put_tombstone('+inf', header)
    found, has_set = flagged(header, true), true
    call('SETRANGE', key, 0, found)
    expire_with(key, set)
end

local items, answers = places == '' and #identities or #places / slices.width, {}
if op == 'd' and items == 0 and not has_set then
    make_set()
end
for item = 1, items do
    local identity, was_there = identities[item], nil
    local tombstone = identity and dead[identity] and identity
    if op == 't' or op == 'd' then
        was_there = not tombstone and find_item(slices, places, item)
    else
        was_there = add_item(slices, places, item, op == 'r', set, tombstone)
        dead[tombstone or ''] = nil
    end
    if op == 'd' and was_there then
        if not has_set then
            make_set()
        end
        dead[identity] = true
        -- The newest epoch, not the one it was found in: a renewed item may be in both.
        put_tombstone(slices.newest, identity)
    end
    answers[item] = was_there and '1' or '0'
end
return {found, table.concat(answers)}
