-- Count the bits that are set in two shards, and in either of them; a part of both, or all.
-- KEYS[1]   a key for bits while the script runs
-- KEYS[2]   another one
-- KEYS[3]   a shard; KEYS[4] the other one
-- ARGV[1]   the first byte of the part; 0: all bytes behind the header
-- ARGV[2]   the last byte of the part
-- ARGV[3]   the header that KEYS[3] is expected to have, 8 bytes; ARGV[4] that of KEYS[4]
-- Reply     {0, bits of the first, of the second, of either}; {2} or {3} alone if the first or the
--           second shard has another header
local call = redis.call
for i = 3, 4 do
  if call('GETRANGE', KEYS[i], 0, 7) ~= ARGV[i] then
    return {i - 1}
  end
end
local first, last = tonumber(ARGV[1]), tonumber(ARGV[2])
if first == 0 then
  first = 8
  call('BITOP', 'OR', KEYS[1], KEYS[3], KEYS[4])
  call('SETRANGE', KEYS[1], 0, string.rep('\0', 8))
else
  -- The time-out is for a script that is refused BITOP half-way.
  call('SET', KEYS[1], call('GETRANGE', KEYS[3], first, last), 'EX', 60)
  call('SET', KEYS[2], call('GETRANGE', KEYS[4], first, last), 'EX', 60)
  call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
end
local either = call('BITCOUNT', KEYS[1])
call('UNLINK', KEYS[1], KEYS[2])
return {
  0, call('BITCOUNT', KEYS[3], first, last), call('BITCOUNT', KEYS[4], first, last), either
}
