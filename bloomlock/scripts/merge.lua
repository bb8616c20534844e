-- Set many bits of a shard at once, from an image of them; part of a transaction that stores it.
-- KEYS[1]   the shard
-- KEYS[2]   the image, its header's place zero; gone afterwards
-- KEYS[3]   a key for a part of the shard while the script runs
-- ARGV[1]   the header the caller expects, 8 bytes
-- ARGV[2]   the byte of the shard at which the image begins; 0: it is one of the whole shard
-- ARGV[3]   another header that is as good, 8 bytes; may be left out
-- Reply     the header found; nothing is set if it is not the expected one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
if header == ARGV[1] or header == ARGV[3] then
  local first = tonumber(ARGV[2])
  if first == 0 then
    -- BITOP writes a string without an expiry.
    local left_ms = redis.call('PTTL', KEYS[1])
    if left_ms == 0 then
      -- The last millisecond: PEXPIRE 0 would delete it, and 1 outlive the descriptor.
      redis.call('BITOP', 'OR', KEYS[2], KEYS[1], KEYS[2])
      redis.call('SET', KEYS[1], redis.call('GET', KEYS[2]), 'KEEPTTL')
    else
      redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
      if left_ms > 0 then
        redis.pcall('PEXPIRE', KEYS[1], left_ms)
      end
    end
  else
    local last = first + redis.call('STRLEN', KEYS[2]) - 1
    -- The time-out is for a script that is refused BITOP half-way.
    redis.call('SET', KEYS[3], redis.call('GETRANGE', KEYS[1], first, last), 'EX', 60)
    redis.call('BITOP', 'OR', KEYS[2], KEYS[2], KEYS[3])
    redis.call('SETRANGE', KEYS[1], first, redis.call('GET', KEYS[2]))
  end
end
-- Nothing that can fail comes after the bits are set: an error means that they were not.
redis.pcall('UNLINK', KEYS[2], KEYS[3])
return header
