-- Test the bits of some items of one shard, and set them if asked; atomic. It is for servers that forbid
-- BITFIELD, so it takes bit by bit.
-- KEYS[1]  the shard
-- ARGV[1]  the header the caller expects, 8 bytes
-- ARGV[2]  "1" to set the bits as well, "0" to test them only
-- ARGV[3]  bytes of one item, four for each of its bits
-- ARGV[4]  the offsets of the items' bits, four bytes each, the highest first
-- ARGV[5]  another header that is as good, 8 bytes; may be left out
-- Reply    {header found, for each item "1" if any of its bits was 0, else "0"};
--          {header found} alone, and nothing written, if it is not the expected one
local call, key, data = redis.call, KEYS[1], ARGV[4]
local header = call('GETRANGE', key, 0, 7)
if header ~= ARGV[1] and header ~= ARGV[5] then
  return {header}
end
local write, width, flags = ARGV[2] == '1', tonumber(ARGV[3]), {}
for start = 1, #data, width do
  local missing = '0'
  for at = start, start + width - 1, 4 do
    local offset = struct.unpack('>I4', data, at)
    if write then
      if call('SETBIT', key, offset, 1) == 0 then
        missing = '1'
      end
    elseif call('GETBIT', key, offset) == 0 then
      missing = '1'
      break
    end
  end
  flags[#flags + 1] = missing
end
return {header, table.concat(flags)}
