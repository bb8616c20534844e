-- Run a script of the caller's in which items can be tested and added; what it is put before is
-- the body of `script`.
-- KEYS     the shards of the items; if the caller goes by what was forgotten as many tables of it;
--          then the keys of the caller's script
-- ARGV[1]  how many shards
-- ARGV[2]  the header the caller expects of them, 8 bytes, without what says that items were forgotten
--          or that a shard has grown; of a filter with a time window behind it "w" and what cells.lua
--          reads, of one that grows "s" and the bits of an item in each slice, a byte each
-- ARGV[3]  bytes of one item, four for each of its bits
-- ARGV[4]  for each item the number of its shard among KEYS, two bytes
-- ARGV[5]  the offsets of the items' bits, slice by slice, four bytes each, the highest first
-- ARGV[6]  how many tables
-- ARGV[7]  if there are tables, for each item its identity, 16 bytes, and the version that its
--          offsets are of, six bytes, zeros for none
-- ARGV     from 8 on the arguments of the caller's script
-- Reply    {1, what the caller's script returns}; and nothing done: {0}, if a shard has another
--          header; {2}, if it has the flag and there are no tables; {3, for each item the version it
--          has}, if the offsets of one are of another; {4, for each shard "1" if it has to turn to
--          the epoch of the clock first, else "0"}, if one has to; {5, for each shard how many
--          slices it has}, if one has more than the caller knows of
local shards, size = tonumber(ARGV[1]), tonumber(ARGV[3])
local numbers, places = ARGV[4], ARGV[5]
local tables, items = tonumber(ARGV[6]), ARGV[7]
local windows, slices = {}, {}
local is_behind, has_grown = false, false
-- The first and the last byte of an item's offsets in each slice.
local firsts, lasts = {1}, {size}
local kind_of_filter = string.sub(ARGV[2], 9, 9)
if kind_of_filter == 's' then
    local last = 0
    for slice, bits in ipairs({string.byte(ARGV[2], 10, -1)}) do
        firsts[slice], last = last + 1, last + 4 * bits
        lasts[slice] = last
    end
end
local now_us
if kind_of_filter == 'w' then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
end
for number = 1, shards do
    local header, more, forgets = read_header(KEYS[number])
    if forgets and tables == 0 then
        return {2}
    end
    if header ~= string.sub(ARGV[2], 1, 8) then
        return {0}
    end
    if kind_of_filter == 'w' then
        windows[number] = read_window(string.sub(ARGV[2], 10), KEYS[number], now_us)
        is_behind = is_behind or windows[number].is_behind
    end
    slices[number] = more + 1
    has_grown = has_grown or more >= #firsts
end
if has_grown then
    return {5, unpack(slices)}
end
if is_behind then
    local behind = {4}
    for number, window in ipairs(windows) do
        behind[number + 1] = window.is_behind and '1' or '0'
    end
    return behind
end
if tables > 0 then
    local versions, are_right = {3}, true
    for start = 1, #items, 22 do
        local item = (start + 21) / 22
        local high, low = string.byte(numbers, 2 * item - 1, 2 * item)
        local identity = string.sub(items, start, start + 15)
        local version = redis.call('HGET', KEYS[shards + high * 256 + low], identity) or ''
        versions[item + 1] = version
        if version == '' then
            version = '\0\0\0\0\0\0'
        end
        are_right = are_right and version == string.sub(items, start + 16, start + 21)
    end
    if not are_right then
        return versions
    end
end

local function rest(words, first)
    local some = {}
    for position = first, #words do
        some[#some + 1] = words[position]
    end
    return some
end

local function shard_of(item)
    local high, low = string.byte(numbers, 2 * item - 1, 2 * item)
    return high * 256 + low
end

-- Test the places of an item in a slice, or set a bit of each; return whether all had one of the
-- bits.
local function had_all(item, slice, command, operation, kind, shift, bits, value)
    local words, before = {}, (item - 1) * size
    for start = before + firsts[slice], before + lasts[slice], 4 do
        local a, b, c, d = string.byte(places, start, start + 3)
        local at = #words
        words[at + 1] = operation
        words[at + 2] = kind
        words[at + 3] = ((a * 256 + b) * 256 + c) * 256 + d + shift
        words[at + 4] = value
    end
    for _, found in ipairs(redis.call(command, KEYS[shard_of(item)], unpack(words))) do
        bits = bit.band(bits, found)
    end
    return bits ~= 0
end

-- Return whether item number `item` was added.
local function exists(item)
    local shard = shard_of(item)
    local window = windows[shard]
    if window then
        return had_all(item, 1, 'BITFIELD_RO', 'GET', window.kind, 0, window.live)
    end
    for slice = slices[shard], 1, -1 do
        if had_all(item, slice, 'BITFIELD_RO', 'GET', 'u1', 0, 1) then
            return true
        end
    end
    return false
end

-- Add item number `item`, the first is 1; return whether it is new.
local function add(item)
    local shard = shard_of(item)
    local window, newest = windows[shard], slices[shard]
    if not window and newest == 1 then
        return not had_all(item, 1, 'BITFIELD', 'SET', 'u1', 0, 1, 1)
    end
    local is_new = not exists(item)
    if is_new or (window and window.renews) then
        had_all(item, newest, 'BITFIELD', 'SET', 'u1', window and window.added or 0, 1, 1)
    end
    return is_new
end

local function script(KEYS, ARGV)
