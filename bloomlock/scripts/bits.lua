-- Test the bits of some items of one shard, and set them if asked; atomic.
-- KEYS[1]  the shard
-- ARGV[1]  the header the caller expects, 8 bytes
-- ARGV[2]  "1" to set the bits as well, "0" to test them only
-- ARGV[3]  bytes of one item, four for each of its bits
-- ARGV[4]  the offsets of the items' bits, four bytes each, the highest first
-- ARGV[5]  another header that is as good, 8 bytes; may be left out
-- Reply    {header found, for each item "1" if any of its bits was 0, else "0"};
--          {header found} alone, and nothing written, if it is not the expected one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] and header ~= ARGV[5] then
  return {header}
end
local write, k, data = ARGV[2] == '1', ARGV[3] / 4, ARGV[4]
local command, operation, width = 'BITFIELD_RO', 'GET', 3
if write then
  command, operation, width = 'BITFIELD', 'SET', 4
end
local byte = string.byte

-- One command for many bits costs half as much as one for each.
local bits = #data / 4
local group = math.min(bits, math.floor(500 / k) * k)
local operations = {}
for i = 1, group * width, width do
  operations[i] = operation
  operations[i + 1] = 'u1'
  if write then
    operations[i + 3] = 1
  end
end

local function one_by_one(count)
  local old = {}
  for i = 3, count * width, width do
    if write then
      old[#old + 1] = redis.call('SETBIT', KEYS[1], operations[i], 1)
    else
      old[#old + 1] = redis.call('GETBIT', KEYS[1], operations[i])
    end
  end
  return old
end

local flags, allowed = {}, true
for first = 0, bits - 1, group do
  local count = math.min(group, bits - first)
  local i = 3
  for p = 4 * first + 1, 4 * (first + count), 4 do
    local a, b, c, d = byte(data, p, p + 3)
    operations[i] = ((a * 256 + b) * 256 + c) * 256 + d
    i = i + width
  end
  local old = allowed and redis.pcall(command, KEYS[1], unpack(operations, 1, count * width))
  if not old or old.err then
    -- Where BITFIELD is forbidden; any other error comes again.
    allowed, old = false, one_by_one(count)
  end
  for from = 1, count, k do
    local missing = '0'
    for j = from, from + k - 1 do
      if old[j] == 0 then
        missing = '1'
        break
      end
    end
    flags[#flags + 1] = missing
  end
end
return {header, table.concat(flags)}
