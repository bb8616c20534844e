-- Put the prepared shard of a generation in its place. Safe to repeat, and to come late.
-- KEYS   1 the shard, 2 its discards; 3 and 4 the same as they are prepared; 5 and 6 stay and no longer
--        expire; the rest goes with the generation that was there
-- ARGV   1 the header of the generation, 8 bytes; 2 the bytes that the shard has at least
-- Reply  1 if it is in its place, now or before; 0 if it is neither there nor prepared
local call, bytes = redis.call, tonumber(ARGV[2])
if read_header(KEYS[1]) == ARGV[1] then
  return 1
end
local header, has_set = read_header(KEYS[3])
if header ~= ARGV[1] or (has_set and call('EXISTS', KEYS[4]) == 0) then
  return 0
end
call('UNLINK', unpack(KEYS, 7))
if call('STRLEN', KEYS[3]) < bytes then
  -- Only an empty one is prepared as its header alone. A string that is made longer would get a MiB more than it needs. Where there is no room, this
  -- command fails, and the shard stays prepared.
  call('SETRANGE', KEYS[1], bytes - 1, '\0')
  call('SETRANGE', KEYS[1], 0, ARGV[1])
  call('UNLINK', KEYS[3])
else
  call('RENAME', KEYS[3], KEYS[1])
end
if has_set then
  call('RENAME', KEYS[4], KEYS[2])
end
for _, key in ipairs({KEYS[1], KEYS[2], KEYS[5], KEYS[6]}) do
  call('PERSIST', key)
end
return 1
