-- Set many bits of a shard at once, from an image of them; part of a transaction that stores it.
-- KEYS   1 the shard; 2 the image, gone afterwards; 3 a key for a part of the shard while it runs
-- ARGV   1 the header the caller expects, 8 bytes; 2 the byte of the shard at which the image begins, 0:
--        it is one of the whole shard, the header's place zero; 3 another header that is as good, or none
-- Reply  the header found; nothing is set if it is not the expected one
local call, first = redis.call, tonumber(ARGV[2])
local header = call('GETRANGE', KEYS[1], 0, 7)
if header == ARGV[1] or header == ARGV[3] then
  if first == 0 and call('PTTL', KEYS[1]) < 0 then
    call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
  elseif first == 0 then
    -- BITOP writes a string without an expiry.
    call('BITOP', 'OR', KEYS[2], KEYS[1], KEYS[2])
    call('SET', KEYS[1], call('GET', KEYS[2]), 'KEEPTTL')
  else
    -- The time-out is for a script that is refused BITOP half-way.
    local last = first + call('STRLEN', KEYS[2]) - 1
    call('SET', KEYS[3], call('GETRANGE', KEYS[1], first, last), 'EX', 60)
    call('BITOP', 'OR', KEYS[2], KEYS[2], KEYS[3])
    call('SETRANGE', KEYS[1], first, call('GET', KEYS[2]))
  end
end
-- Nothing that can fail comes after the bits are set: an error means that they were not.
redis.pcall('UNLINK', KEYS[2], KEYS[3])
return header
