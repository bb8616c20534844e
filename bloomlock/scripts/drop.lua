-- Delete a shard that is of a generation, or of none. Safe to repeat, and to come late.
-- KEYS   1 the shard; 2 goes in any case; the rest goes with the shard
-- ARGV   1 the header of the generation, 8 bytes, without flags
local found = redis.pcall('GETRANGE', KEYS[1], 0, 7)
-- What is no filter's string has no header.
local is_shard = type(found) == 'string' and #found == 8 and string.find(found, '[^%z]')
if is_shard and read_header(KEYS[1]) ~= ARGV[1] then
  return redis.call('UNLINK', KEYS[2])
end
return redis.call('UNLINK', unpack(KEYS))
