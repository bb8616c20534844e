-- Set many bits of a shard at once, from an image of them; atomic, safe to repeat.
-- KEYS[1]   the shard
-- KEYS[2]   a key for the image while the script runs
-- KEYS[3]   a key for a part of the shard while the script runs
-- ARGV[1]   the header the caller expects, 8 bytes
-- ARGV[2]   the byte of the shard at which the image begins; 0: it is one of the whole shard
-- ARGV[3]   the image, its header's place zero
-- ARGV[4]   "1" to be told the bytes that were there before
-- Reply     {header found, the bytes before or ""};
--           {header found} alone, and nothing written, if it is not the expected one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header ~= ARGV[1] then
  return {header}
end
local first = tonumber(ARGV[2])
local before = ''
if first > 0 or ARGV[4] == '1' then
  before = redis.call('GETRANGE', KEYS[1], first, first + #ARGV[3] - 1)
end
-- The keys are gone at the end; the time-out is for a script that is refused BITOP half-way.
redis.call('SET', KEYS[2], ARGV[3], 'EX', 60)
if first == 0 then
  redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
else
  redis.call('SET', KEYS[3], before, 'EX', 60)
  redis.call('BITOP', 'OR', KEYS[2], KEYS[2], KEYS[3])
  redis.call('SETRANGE', KEYS[1], first, redis.call('GET', KEYS[2]))
end
-- Nothing that can fail comes after the bits are set: an error means that they were not.
redis.pcall('UNLINK', KEYS[2], KEYS[3])
return {header, ARGV[4] == '1' and before or ''}
