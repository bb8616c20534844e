-- Bring a shard with a time window one step nearer to the epoch of the server's clock, or wipe a
-- part of the slice that comes next.
-- Safe to repeat.
-- KEYS      1 the shard, 2 a part of it while it is wiped, 3 the mask of what stays
-- ARGV[1]   the header the caller expects, 8 bytes, without what says that items were forgotten
-- ARGV[2]   microseconds of an epoch
-- ARGV[3]   bytes of a cell
-- ARGV[4]   bytes of a part, a multiple of the cell
-- Reply     {header, state}, and 1 if the shard is behind the clock, 1 if something is left to wipe;
--           {header} alone, and nothing done, if it is not the expected one
local call = redis.call
local start = call('GETRANGE', KEYS[1], 0, 15)
local header = string.sub(start, 1, 8)
if read_header(KEYS[1]) ~= ARGV[1] then
    return {header}
end
local cell_bytes, part_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local bits = 8 * cell_bytes
local time = call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / tonumber(ARGV[2]))
local a, b, c, d, e, ahead, high, low = string.byte(start, 9, 16)
local epoch = (((a * 256 + b) * 256 + c) * 256 + d) * 256 + e
local done = high * 256 + low
local size = call('STRLEN', KEYS[1]) - 24
local parts = math.ceil(size / part_bytes)

local is_behind, is_new = now > epoch, epoch == 0
local wanted = is_behind and math.min(now - epoch, bits) or 1
if ahead ~= wanted then
    -- Time went on, or back: then what is live again is wiped no further.
    ahead, done = wanted, 0
end
-- Of a new shard only what late adds of another generation have left is wiped. They may write to any
-- part until the shard has turned, so it turns in a call that finds all parts clean.
local function skip_clean()
    while done < parts do
        local first = 24 + done * part_bytes
        local last = math.min(first + part_bytes, 24 + size) - 1
        if call('BITCOUNT', KEYS[1], first, last) ~= 0 then
            break
        end
        done = done + 1
    end
end
if is_new then
    local start = done
    skip_clean()
    if done == parts and start > 0 then
        done = 0
        skip_clean()
    end
end
local has_wiped = false
if done < parts then
    local masks = {}
    for number = 1, cell_bytes do
        masks[number] = 255
    end
    for step = 1, ahead do
        local slice = (epoch + step) % bits
        local number = cell_bytes - math.floor(slice / 8)
        masks[number] = masks[number] - 2 ^ (slice % 8)
    end
    local cell = string.char(unpack(masks))
    if call('GETRANGE', KEYS[3], 0, cell_bytes - 1) ~= cell then
        call('SET', KEYS[3], string.rep(cell, part_bytes / cell_bytes), 'EX', 60)
    end
    local first = 24 + done * part_bytes
    local last = math.min(first + part_bytes, 24 + size) - 1
    -- The time-outs are for a script that is refused a command half-way.
    call('SET', KEYS[2], call('GETRANGE', KEYS[1], first, last), 'EX', 60)
    call('BITOP', 'AND', KEYS[2], KEYS[2], KEYS[3])
    call('SETRANGE', KEYS[1], first, call('GETRANGE', KEYS[2], 0, last - first))
    done, has_wiped = done + 1, true
end
if done == parts and not (is_new and has_wiped) then
    call('UNLINK', KEYS[2], KEYS[3])
    if is_behind then
        epoch, ahead, done = now, 1, 0
    end
end
local bytes, rest = {}, epoch
for number = 5, 1, -1 do
    bytes[number] = rest % 256
    rest = math.floor(rest / 256)
end
local state = string.char(bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], ahead,
    math.floor(done / 256), done % 256)
call('SETRANGE', KEYS[1], 8, state)
return {header, state, now > epoch and 1 or 0, done < parts and 1 or 0}
