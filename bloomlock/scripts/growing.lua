-- Test some items in all slices of a shard of a filter that grows, and if asked set the bits of
-- those that are in none in the newest; atomic. Safe to repeat, but what it added is seen then.
-- KEYS[1]  the shard
-- ARGV[1]  the header the caller expects, 8 bytes; it says how many slices there are
-- ARGV[2]  "1" to set bits as well, "0" to test only
-- ARGV[3]  how many bits an item has in each slice, one byte each, the newest last
-- ARGV[4]  the offsets of the items' bits, slice by slice, four bytes each, the highest first
-- Reply    {header found, for each item "1" if no slice has all of its bits, else "0"};
--          {header found} alone, and nothing written, if it is not the expected one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] then
  return {header}
end
local key, write, data = KEYS[1], ARGV[2] == '1', ARGV[4]
local call, byte = redis.call, string.byte
local firsts, lasts, width = {}, {}, 0
for number, k in ipairs({byte(ARGV[3], 1, -1)}) do
  firsts[number], width = width + 1, width + 4 * k
  lasts[number] = width
end
local newest = #firsts

local function offset(p)
  local a, b, c, d = byte(data, p, p + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- A slice that does not have an item says so by its first or second bit, mostly: to ask bit by bit
-- is quicker than to ask for all of them at once.
local function is_in(number, item)
  for p = item + firsts[number], item + lasts[number], 4 do
    if call('GETBIT', key, offset(p)) == 0 then
      return false
    end
  end
  return true
end

local flags = {}
for item = 0, #data - 1, width do
  local seen = false
  -- Most items are in the newest.
  for number = newest, 1, -1 do
    if is_in(number, item) then
      seen = true
      break
    end
  end
  if write and not seen then
    local words = {}
    for p = item + firsts[newest], item + lasts[newest], 4 do
      local at = #words
      words[at + 1], words[at + 2], words[at + 3], words[at + 4] = 'SET', 'u1', offset(p), 1
    end
    call('BITFIELD', key, unpack(words))
  end
  flags[#flags + 1] = seen and '0' or '1'
end
return {header, table.concat(flags)}
