-- Test the bits of some items of one shard of a blocked filter, and set them if asked; atomic.
-- KEYS[1]  the shard
-- ARGV[1]  the header the caller expects, 8 bytes
-- ARGV[2]  "1" to set the bits as well, "0" to test them only
-- ARGV[3]  bytes of one item: four, and two for each of its bits
-- ARGV[4]  for each item the number of its block, four bytes, and its bits, an even number of them:
--          the word (from 1) and the bit in it (from 1, the lowest first), one byte each
-- ARGV[5]  another header that is as good, 8 bytes; may be left out
-- Reply    {header found, for each item "1" if any of its bits was 0, else "0"};
--          {header found} alone, and nothing written, if it is not the expected one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] and header ~= ARGV[5] then
  return {header}
end
local write, size, data = ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local key, call, byte = KEYS[1], redis.call, string.byte
local read, join = struct.unpack, struct.pack

-- 48 bits have room in a floating-point number, and plain arithmetic needs no call for each bit.
local WORDS = '>I6I6I6I6I6I6I6I6I6I6I4'
local POWER = {}
for bit = 1, 48 do
  POWER[bit] = 2 ^ (bit - 1)
end

local flags, words = {}, {}
for start = 1, #data, size do
  local a, b, c, d = byte(data, start, start + 3)
  local first = 8 + (((a * 256 + b) * 256 + c) * 256 + d) * 64
  local block = call('GETRANGE', key, first, first + 63)
  words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8], words[9],
    words[10], words[11] = read(WORDS, block)
  local missing = false
  for p = start + 4, start + size - 1, 4 do
    local word, bit, next_word, next_bit = byte(data, p, p + 3)
    local value, old = POWER[bit], words[word]
    if old % (value + value) < value then
      words[word] = old + value
      missing = true
    end
    value, old = POWER[next_bit], words[next_word]
    if old % (value + value) < value then
      words[next_word] = old + value
      missing = true
    end
  end
  if missing and write then
    call('SETRANGE', key, first, join(WORDS, unpack(words, 1, 11)))
  end
  flags[#flags + 1] = missing and '1' or '0'
end
return {header, table.concat(flags)}
