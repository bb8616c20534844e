-- Put a prepared shard in the place of another one. Safe to repeat.
-- KEYS[1]   the shard; KEYS[2] the prepared one; the others go with the generation that ends
-- ARGV[1]   the header of the prepared shard, 8 bytes
-- ARGV[2]   the header the shard had when it was decided to replace it, without the flag that items
--           were forgotten
-- Reply     0 if it is in place, now or before; 1 if the shard has another header; 2 if the
--           prepared one has
local call = redis.call
local header = read_header(KEYS[1])
if #header < 8 then
  header = string.rep('\0', 8)
end
if header == ARGV[1] then
  return 0
elseif header ~= ARGV[2] then
  return 1
elseif call('GETRANGE', KEYS[2], 0, 7) ~= ARGV[1] then
  return 2
end
local left_ms = call('PTTL', KEYS[1])
call('UNLINK', KEYS[1], unpack(KEYS, 3))
call('RENAME', KEYS[2], KEYS[1])
if left_ms >= 0 then
  -- 0 in its last millisecond; PEXPIRE 0 would delete it.
  call('PEXPIRE', KEYS[1], math.max(left_ms, 1))
else
  call('PERSIST', KEYS[1])
end
return 0
