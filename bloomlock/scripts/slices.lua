-- The bitmaps of a shard and its tombstones, for scripts that test, add or discard items; put before
-- those, behind header.lua. What the state means, and why the answers are right, stands in
-- bloomlock/slices.py. A plain shard is one that grows and has one slice.
-- Layout   microseconds of an epoch, 8 bytes (0: no window), bytes of a slice of a window, 4, how many
--          slices there are, 1, and the bits of an item in a slice, 1 (without a window: in each one)
-- Places   for each item the offsets of its bits, 4 bytes each (without a window: slice by slice)
local FIRST_BYTE = 24

-- Return the slices that count, the newest first. `has_set`: whether there are tombstones. With `adds`
-- a window goes on to the epoch of the clock: the slice of that is wiped, and those of the epochs
-- between are not in use any more. Return nil, and how many slices there are, where the layout has
-- another number.
local function open_slices(key, layout, has_set, adds)
    local call = redis.call
    local epoch_us, size, count = struct.unpack('>I8I4B', layout)
    local newest, used = struct.unpack('>I8I2', call('GETRANGE', key, 8, 17))
    local slices = {key = key, has_set = has_set, newest = newest}
    slices.width = 4 * string.byte(layout, 14)
    if epoch_us == 0 then
        if newest + 1 ~= count then
            return nil, newest + 1
        end
        slices.width = 0
        for number = 1, count do
            local first = slices.width
            slices.width = first + 4 * string.byte(layout, 13 + number)
            slices[count - number + 1] = {base = 0, first = first, last = slices.width - 4}
        end
        return slices
    end
    local time = call('TIME')
    local now = math.floor((time[1] * 1000000 + time[2]) / epoch_us)
    slices.is_window = true
    if adds and now > newest then
        for epoch = math.max(newest + 1, now - count + 1), now do
            used = bit.band(used, bit.bnot(bit.lshift(1, epoch % count)))
        end
        used = bit.bor(used, bit.lshift(1, now % count))
        local first = FIRST_BYTE + now % count * size
        -- To make one long string takes the server 8 ms for a MiB.
        local zeros = string.rep('\0', 16384)
        for start = 0, size - 1, #zeros do
            call('SETRANGE', key, first + start, string.sub(zeros, 1, size - start))
        end
        call('SETRANGE', key, 8, struct.pack('>I8I2', now, used))
        newest, slices.newest, slices.has_moved = now, now, true
    end
    slices.oldest = math.max(newest, now) - count + 1
    for epoch = newest, slices.oldest, -1 do
        local place = epoch % count
        if bit.band(used, bit.lshift(1, place)) ~= 0 then
            slices[#slices + 1] = {base = 8 * size * place, first = 0, last = slices.width - 4}
        end
    end
    return slices
end

-- Return the number of the first slice that has all bits of item number `item`; nil: none has. Without
-- places they are all set in the one slice of a plain shard, as the caller knows.
local function find_item(slices, places, item)
    if places == '' then
        return 1
    end
    local call, offset_at, key = redis.call, struct.unpack, slices.key
    local start = slices.width * (item - 1) + 1
    for number, slice in ipairs(slices) do
        local base, all = slice.base, true
        -- A slice that lacks an item says so by its first or second bit, mostly: one by one is
        -- quicker than all by one command.
        for at = start + slice.first, start + slice.last, 4 do
            if call('GETBIT', key, base + offset_at('>I4', places, at)) == 0 then
                all = false
                break
            end
        end
        if all then
            return number
        end
    end
    return nil
end

-- Return which of some items have a tombstone, by their identities; nil: the set was evicted.
local function read_tombstones(slices, set, header, identities)
    if not slices.has_set then
        return {}
    end
    if slices.has_moved then
        -- What no slice has needs none.
        redis.call('ZREMRANGEBYSCORE', set, '-inf', '(' .. slices.oldest)
    end
    local command = slices.is_window and 'ZMSCORE' or 'SMISMEMBER'
    local found, dead = redis.call(command, set, header, unpack(identities)), {}
    for i, identity in ipairs(identities) do
        dead[identity] = found[i + 1] and found[i + 1] ~= 0
    end
    return found[1] and found[1] ~= 0 and dead or nil
end

-- Add item number `item`, or with `refreshes` refresh it; return whether it was there. `dead`: its
-- tombstone, if it has one, which goes. It takes bit by bit, for servers that forbid BITFIELD.
local function add_item(slices, places, item, refreshes, set, dead)
    local call, key, newest = redis.call, slices.key, slices[1]
    local slice = find_item(slices, places, item)
    local is_there = slice and not dead
    if is_there and (slice == 1 or not refreshes) then
        return true
    end
    -- With a window what is new is in the newest slice in any case, so that it is remembered for the
    -- window from now on.
    if not slice or (slices.is_window and slice > 1) then
        local start = slices.width * (item - 1) + 1
        for at = start + newest.first, start + newest.last, 4 do
            call('SETBIT', key, newest.base + struct.unpack('>I4', places, at), 1)
        end
    end
    if dead then
        -- Also of an item that no slice had: else its next test would say that it is not there.
        call(slices.is_window and 'ZREM' or 'SREM', set, dead)
    end
    return is_there
end
