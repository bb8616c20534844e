-- Cells of a shard with a time window, for scripts that test and add items; put before them. The
-- rules stand in bloomlock/windows.py.
-- Packed   the window: microseconds of an epoch, 8 bytes, slices, bits of a
--          cell, and 1 if an add renews what is there, one byte each
-- Place    where the cell of an item begins

-- Return what holds now: the type of a cell for BITFIELD, its bits that are live, the bit that an add
-- sets, whether it sets that of what is there, and whether the shard has to turn before an add.
local function read_window(packed, key, now_us)
    local slice_us, slices, bits, renews = struct.unpack('>I8BBB', packed)
    local a, b, c, d, e = string.byte(redis.call('GETRANGE', key, 8, 12), 1, 5)
    local epoch = (((a * 256 + b) * 256 + c) * 256 + d) * 256 + e
    local now = math.floor(now_us / slice_us)
    local live = 0
    for slice = math.max(epoch, now) - slices, epoch do
        live = bit.bor(live, bit.lshift(1, slice % bits))
    end
    return {
        kind = 'u' .. bits,
        live = live,
        -- The lowest bit of a cell is its last.
        added = bits - 1 - epoch % bits,
        renews = renews == 1,
        is_behind = now > epoch,
    }
end
