-- Write what one shard holds, or two hold together, to a shard; a part of it, or the whole.
-- KEYS[1]   the shard that is written; it may be one of the others
-- KEYS[2]   a key for a part of a shard while the script runs
-- KEYS[3]   another one
-- KEYS[4]   the shard that is read; KEYS[5] a second one, if there is one
-- ARGV[1]   the header that KEYS[1] is expected to have, 8 bytes
-- ARGV[2]   the first byte of the part; 0: the whole shard
-- ARGV[3]   the last byte of the part
-- ARGV[4]   the header that KEYS[4] is expected to have, ARGV[5] that of KEYS[5]
-- Reply     0 if it was written; else, and nothing is written, which shard has another header: 1
--           the one that is written, 2 the first that is read, 3 the second
-- Safe to repeat.
local call, target = redis.call, KEYS[1]
if call('GETRANGE', target, 0, 7) ~= ARGV[1] then
  return 1
end
for i = 4, #KEYS do
  if call('GETRANGE', KEYS[i], 0, 7) ~= ARGV[i] then
    return i - 2
  end
end
local first, last = tonumber(ARGV[2]), tonumber(ARGV[3])
if first == 0 then
  -- BITOP writes a string without an expiry, and combines the headers too.
  local left_ms = call('PTTL', target)
  call('BITOP', 'OR', target, unpack(KEYS, 4))
  call('SETRANGE', target, 0, ARGV[1])
  if left_ms >= 0 then
    -- 0 in its last millisecond; PEXPIRE 0 would delete it.
    call('PEXPIRE', target, math.max(left_ms, 1))
  end
  return 0
end
local part = call('GETRANGE', KEYS[4], first, last)
if KEYS[5] then
  -- The time-out is for a script that is refused BITOP half-way.
  call('SET', KEYS[2], part, 'EX', 60)
  call('SET', KEYS[3], call('GETRANGE', KEYS[5], first, last), 'EX', 60)
  call('BITOP', 'OR', KEYS[2], KEYS[2], KEYS[3])
  part = call('GET', KEYS[2])
  call('UNLINK', KEYS[2], KEYS[3])
end
call('SETRANGE', target, first, part)
return 0
