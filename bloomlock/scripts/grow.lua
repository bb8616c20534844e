-- Add a slice to a shard, unless it has grown already. Safe to repeat.
-- KEYS[1]  the shard
-- ARGV[1]  the header of a shard that has not, 8 bytes
-- ARGV[2]  the header it gets
-- ARGV[3]  the number of its last byte then, counted from 0
-- Reply    the header it has now
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] then
  return header
end
-- What can fail comes first: without the room the shard stays as it is.
redis.call('SETRANGE', KEYS[1], ARGV[3], '\0')
redis.call('SETRANGE', KEYS[1], 0, ARGV[2])
return ARGV[2]
