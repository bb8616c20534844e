-- Run a script of the caller's in which items can be tested and added; what it is put before is
-- the body of `script`.
-- KEYS     the shards of the items, then as many sets of their tombstones, then the keys of the
--          caller's script
-- ARGV     1 how many shards; 2 the header the caller expects of them, 8 bytes, without flags; 3 "r" if
--          an add renews what is there; 4 for each item the number of its shard among KEYS, two bytes;
--          5 the identities of the items, 16 bytes each; then for each shard layout and places of its
--          items, see slices.lua; then the arguments of the caller's script
-- Reply    {1, what the caller's script returns}, or {3, ...}, if a shard has tombstones; and nothing
--          done: {0}, if a shard has another header, or its tombstones were evicted; {2, for each shard
--          how many slices it has}, if one has another number than the caller believes
local shards, renews = tonumber(ARGV[1]), ARGV[3] == 'r'
local now_us, is_known, has_discards = 0, true, false
if struct.unpack('>I8', ARGV[6]) > 0 then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
end
local opened, numbers = {}, {}
for shard = 1, shards do
    local header, has_set = read_header(KEYS[shard])
    if header ~= ARGV[2] then
        return {0}
    end
    local slices, count = open_slices(KEYS[shard], ARGV[2 * shard + 4], now_us, false)
    numbers[shard] = count or string.byte(ARGV[2 * shard + 4], 13)
    is_known, has_discards = is_known and slices, has_discards or has_set
    if slices then
        slices.has_set = has_set
        if has_set and not read_tombstones(slices, KEYS[shards + shard], header, {}) then
            return {0}
        end
    end
    opened[shard] = slices
end
if not is_known then
    return {2, unpack(numbers)}
end

local function rest(words, first)
    local some = {}
    for position = first, #words do
        some[#some + 1] = words[position]
    end
    return some
end

-- The shard of each item, and which of its items it is.
local shard_of, place_of, counts = {}, {}, {}
for item = 1, #ARGV[4] / 2 do
    local shard = struct.unpack('>I2', ARGV[4], 2 * item - 1)
    counts[shard] = (counts[shard] or 0) + 1
    shard_of[item], place_of[item] = shard, counts[shard]
end

-- Return the identity of an item if it has a tombstone.
local function tombstone_of(item)
    local shard = shard_of[item]
    local slices, identity = opened[shard], string.sub(ARGV[5], 16 * item - 15, 16 * item)
    local dead = slices.has_set
        and read_tombstones(slices, KEYS[shards + shard], ARGV[2], {identity})
    return dead and dead[identity] and identity
end

-- Return whether item number `item` was added.
local function exists(item)
    local shard = shard_of[item]
    local is_there = find_item(opened[shard], ARGV[2 * shard + 5], place_of[item])
    return is_there ~= nil and not tombstone_of(item)
end

-- Add item number `item`, the first is 1; return whether it is new.
local function add(item)
    local shard = shard_of[item]
    local has_set = opened[shard].has_set
    if opened[shard].is_behind then
        opened[shard] = open_slices(KEYS[shard], ARGV[2 * shard + 4], now_us, true)
        opened[shard].has_set = has_set
    end
    local dead, set = tombstone_of(item), KEYS[shards + shard]
    local places = ARGV[2 * shard + 5]
    return not add_item(opened[shard], places, place_of[item], renews, set, dead)
end

local function script(KEYS, ARGV)
