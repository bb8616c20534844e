-- Test the bits of some items of one shard, and set them if asked; atomic.
-- KEYS[1]   the shard
-- ARGV[1]   the header the caller expects, 8 bytes
-- ARGV[2]   "SETBIT" to set the bits as well, "GETBIT" to test them only
-- ARGV[3]   bits of one item, k
-- ARGV[4..] the offsets, k for each item
-- Reply     {header found, then for each item 1 if any of its bits was 0, else 0};
--           {header found} alone, and nothing written, if it is not the expected one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] then
  return {header}
end
local write = ARGV[2] == 'SETBIT'
local k = tonumber(ARGV[3])
local reply = {header}
for first = 4, #ARGV, k do
  local missing = 0
  for index = first, first + k - 1 do
    local bit
    if write then
      bit = redis.call('SETBIT', KEYS[1], ARGV[index], 1)
    else
      bit = redis.call('GETBIT', KEYS[1], ARGV[index])
    end
    if bit == 0 then
      missing = 1
    end
  end
  reply[#reply + 1] = missing
end
return reply
