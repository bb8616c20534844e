-- Replace a shard by an empty one, unless it already is of the wanted generation. Safe to repeat.
-- KEYS      1 the shard; the others go with its generation, but for the last: the counts of its
--           claims, which stay, as they have the last fence
-- ARGV[1]   the header it shall have, 8 bytes
-- ARGV[2]   the number of its last byte, counted from 0
-- ARGV[3]   the header it had when it was decided to replace it, 8 bytes, without the flag that
--           items were forgotten; zeros if none
-- Reply     1 if it was replaced, 0 if it had that header already; and if it was left alone: -1 if
--           its header has flags that a newer version has set, -2 if its header is another one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
local magic, flags = string.byte(header, 1, 2)
if magic == 66 and (flags == 2 or flags == 3) then
  flags = flags - 2
  header = string.char(magic, flags) .. string.sub(header, 3)
end
if header == ARGV[1] then
  return 0
end
if magic == 66 and flags and flags > 1 then
  return -1
end
if #header < 8 then
  header = string.rep('\0', 8)
end
if header ~= ARGV[3] then
  return -2
end
redis.call('UNLINK', unpack(KEYS, 1, #KEYS - 1))
redis.call('PERSIST', KEYS[#KEYS])
redis.call('SETRANGE', KEYS[1], ARGV[2], '\0')
redis.call('SETRANGE', KEYS[1], 0, ARGV[1])
return 1
