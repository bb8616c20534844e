-- Say when the keys of a shard expire. Safe to repeat.
-- KEYS[1]   the shard; the others expire with it, as far as they are there
-- ARGV[1]   the header it is expected to have, 8 bytes, without the flag that items were forgotten
-- ARGV[2]   in how many ms they expire; 0: never
-- Reply     1 if it is done; 0, and nothing is changed, if it has another header
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if string.byte(header, 2) == 2 then
  header = string.sub(header, 1, 1) .. '\0' .. string.sub(header, 3)
elseif #header == 8 and string.byte(header, 2) == 1 then
  -- The shard has grown: that of its generation has no flag, and 0 slices.
  local last = string.byte(header, 8)
  header = string.sub(header, 1, 1) .. '\0' .. string.sub(header, 3, 7)
    .. string.char(last - last % 16)
end
if header ~= ARGV[1] then
  return 0
end
for _, key in ipairs(KEYS) do
  if ARGV[2] == '0' then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return 1
