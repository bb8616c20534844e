-- Write bytes of a shard that is being prepared. Safe to repeat.
-- KEYS[1]   the shard
-- ARGV[1]   the header it is expected to have, 8 bytes
-- ARGV[2]   the first byte that is written
-- ARGV[3]   the bytes
-- Reply     0 if they were written; 1, and nothing is written, if it has another header
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then
  return 1
end
redis.call('SETRANGE', KEYS[1], ARGV[2], ARGV[3])
return 0
