-- Forget some items of one shard: from now on each has another version, and other bits.
-- KEYS[1]  the shard
-- KEYS[2]  the versions of forgotten items: identity -> version; `count` -> how often any was
-- ARGV[1]  the header the caller expects, 8 bytes, without what says that items were forgotten or
--          that the shard has grown; behind it of a filter with a time window "w" and what cells.lua
--          reads, else "s" and the bits of an item in each slice, a byte each
-- ARGV[2]  how many items; 0: only set the flag that items were forgotten
-- ARGV     from 3 on for each item its identity, the version it has as the caller believes (empty:
--          none), the version it is to have, new with each call but for its repetitions, and the
--          offsets of its bits by the one and by the other, slice by slice, four bytes each; with a
--          time window where its cells begin, and set are those bits that one live slice has in all
-- Reply    {header found, for each item 1 if it was forgotten, by this call or by an earlier try of
--          it; 0 if it is not there; 2 if all bits of the version it is to have are set already, so
--          that it needs another; or a string, if it has not the version the caller believes: "1"
--          or "0", whether all bits of the version it is to have are set, and the version it has};
--          {header found} alone, and nothing written, if it is not the expected one, or there are
--          items and it has another number of slices
-- Safe to repeat: a version never returns, and an item that has the version it is to have was
-- forgotten by this call. Of a version that was in force once all bits are set (with a time window
-- as long as the slices live that it was there in).
local call = redis.call
local found = call('GETRANGE', KEYS[1], 0, 7)
local header, more_slices, forgets = read_header(KEYS[1])
local count, kind_of_filter = tonumber(ARGV[2]), string.sub(ARGV[1], 9, 9)
local slices = {string.byte(ARGV[1], 10, -1)}
if header ~= string.sub(ARGV[1], 1, 8) or
    (kind_of_filter == 's' and #slices ~= more_slices + 1) then
    return {found}
end
local window
if kind_of_filter == 'w' then
    local time = call('TIME')
    window = read_window(string.sub(ARGV[1], 10), KEYS[1], time[1] * 1000000 + time[2])
end

local allowed = true
local function are_in_slice(places, first, last)
    local words = {}
    for start = first, last, 4 do
        local a, b, c, d = string.byte(places, start, start + 3)
        local at = #words
        words[at + 1] = 'GET'
        words[at + 2] = 'u1'
        words[at + 3] = ((a * 256 + b) * 256 + c) * 256 + d
    end
    local bits = allowed and redis.pcall('BITFIELD_RO', KEYS[1], unpack(words))
    if not bits or bits.err then
        -- Where BITFIELD is forbidden; any other error comes again.
        allowed, bits = false, {}
        for at = 3, #words, 3 do
            bits[#bits + 1] = call('GETBIT', KEYS[1], words[at])
        end
    end
    for _, bit in ipairs(bits) do
        if bit == 0 then
            return false
        end
    end
    return true
end

-- Whether a live slice of the window has its bit in all cells of an item.
local function are_in_cells(places)
    local words = {}
    for start = 1, #places, 4 do
        local a, b, c, d = string.byte(places, start, start + 3)
        local at = #words
        words[at + 1] = 'GET'
        words[at + 2] = window.kind
        words[at + 3] = ((a * 256 + b) * 256 + c) * 256 + d
    end
    local slices_of_all = window.live
    for _, cell in ipairs(call('BITFIELD_RO', KEYS[1], unpack(words))) do
        slices_of_all = bit.band(slices_of_all, cell)
    end
    return slices_of_all ~= 0
end

-- Whether a slice has all bits of an item.
local function are_set(places)
    if window then
        return are_in_cells(places)
    end
    local first = 1
    for _, bits in ipairs(slices) do
        local last = first + 4 * bits - 1
        if are_in_slice(places, first, last) then
            return true
        end
        first = last + 1
    end
    return false
end

local identities = {}
for item = 1, count do
    identities[item] = ARGV[5 * item - 2]
end
local versions = {}
if count > 0 then
    versions = call('HMGET', KEYS[2], unpack(identities))
end

local reply, written, forgotten = {found}, {}, 0
for item = 1, count do
    local at = 5 * item - 2
    local believed, version = ARGV[at + 1], ARGV[at + 2]
    local current = versions[item] or ''
    if current == version then
        reply[item + 1] = 1
    elseif current ~= believed then
        reply[item + 1] = (are_set(ARGV[at + 4]) and '1' or '0') .. current
    elseif not are_set(ARGV[at + 3]) then
        reply[item + 1] = 0
    elseif are_set(ARGV[at + 4]) then
        reply[item + 1] = 2
    else
        written[#written + 1] = ARGV[at]
        written[#written + 1] = version
        forgotten = forgotten + 1
        reply[item + 1] = 1
    end
end
if not forgets and (forgotten > 0 or count == 0) then
    -- First, so that no client goes by the table without the flag.
    reply[1] = flagged(header, more_slices, true)
    call('SETRANGE', KEYS[1], 0, reply[1])
end
if forgotten > 0 then
    call('HSET', KEYS[2], unpack(written))
    call('HINCRBY', KEYS[2], 'count', forgotten)
    local left_ms = call('PTTL', KEYS[1])
    if left_ms >= 0 then
        -- 0 in its last millisecond; PEXPIRE 0 would delete it.
        call('PEXPIRE', KEYS[2], math.max(left_ms, 1))
    end
end
return reply
