-- Run a script of the caller's, the function `script`, in which items can be tested and added.
-- KEYS     the shards of the items, then as many sets of their tombstones, then the keys of the
--          caller's script
-- ARGV     1 how many shards; 2 the header the caller expects of them, 8 bytes, without flags; 3 "r" if
--          an add refreshes what is there; 4 for each item the number of its shard among KEYS, 2 bytes, and its
--          number among the items of that, 4 bytes;
--          5 the identities of the items, 16 bytes each; then for each shard layout and places of its
--          items, see slices.lua; then the arguments of the caller's script
-- Reply    {1, what the caller's script returns}, or {3, ...}, if a shard has tombstones; and nothing
--          done: {0}, if a shard has another header, or its tombstones were evicted; {2, the number of
--          a shard, how many slices it has}, if that is another number than the caller believes
local shards, refreshes = tonumber(ARGV[1]), ARGV[3] == 'r'
local opened, has_discards = {}, false
for shard = 1, shards do
    local header, has_set = read_header(KEYS[shard])
    if header ~= ARGV[2] then
        return {0}
    end
    local slices, count = open_slices(KEYS[shard], ARGV[2 * shard + 4], has_set, true)
    if not slices then
        return {2, shard, count}
    end
    if not read_tombstones(slices, KEYS[shards + shard], header, {}) then
        return {0}
    end
    opened[shard], has_discards = slices, has_discards or has_set
end

-- Return the slices of the shard of an item, the places of that and which of them are the item's, its
-- identity if it has a tombstone, and the set of those.
local function find(item)
    local shard, number = struct.unpack('>I2I4', ARGV[4], 6 * item - 5)
    local slices, set = opened[shard], KEYS[shards + shard]
    local identity = string.sub(ARGV[5], 16 * item - 15, 16 * item)
    local dead = read_tombstones(slices, set, ARGV[2], {identity})
    return slices, ARGV[2 * shard + 5], number, dead[identity] and identity, set
end

-- Return whether item number `item` was added.
local function exists(item)
    local slices, places, number, dead = find(item)
    return not dead and find_item(slices, places, number) ~= nil
end

-- Add item number `item`, the first is 1; return whether it is new.
local function add(item)
    local slices, places, number, dead, set = find(item)
    return not add_item(slices, places, number, refreshes, set, dead)
end

return {
    has_discards and 3 or 1,
    script({unpack(KEYS, 2 * shards + 1)}, {unpack(ARGV, 6 + 2 * shards)}, exists, add),
}
