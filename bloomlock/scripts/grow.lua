-- Append a slice to a shard, unless another client has done so. Safe to repeat.
-- KEYS   1 the shard
-- ARGV   1 its header without flags, 2 how many slices the caller knows, 3 the number of its last byte
--        with one slice more, counted from 0
-- Reply  {header, how many slices there are}; {header} alone: it is another one
local header = read_header(KEYS[1])
if header ~= ARGV[1] then
    return {header}
end
local count = struct.unpack('>I8', redis.call('GETRANGE', KEYS[1], 8, 15)) + 1
if count == tonumber(ARGV[2]) then
    -- What can fail comes first: without the memory the shard stays as it is.
    redis.call('SETRANGE', KEYS[1], ARGV[3], '\0')
    redis.call('SETRANGE', KEYS[1], 8, struct.pack('>I8', count))
    count = count + 1
end
return {header, count}
