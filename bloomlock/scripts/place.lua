-- Put the prepared shard of a generation in its place. Safe to repeat, and to come late.
-- KEYS   1 the shard, 2 its discards; 3 and 4 the same as they are prepared; then as many as ARGV[4]
--        says that stay and no longer expire; the rest goes with the generation that was there
-- ARGV   1 the header of the generation, 8 bytes; 2 the bytes that the shard has at least; 3 "1" if it
--        is filled, so that less is a loss; 4 see KEYS
-- Reply  1 if it is in its place, now or before; 0 if it is neither there nor prepared
local call, bytes, kept = redis.call, tonumber(ARGV[2]), 4 + tonumber(ARGV[4])
if read_header(KEYS[1]) == ARGV[1] then
  return 1
end
local header, has_set = read_header(KEYS[3])
local is_short = call('STRLEN', KEYS[3]) < bytes
if header ~= ARGV[1] or (is_short and ARGV[3] == '1') or
    (has_set and call('EXISTS', KEYS[4]) == 0) then
  return 0
end
call('UNLINK', unpack(KEYS, kept + 1))
if is_short then
  -- A string that is made longer would get a MiB more than it needs. Where there is no room, this
  -- command fails, and the shard stays prepared.
  call('SETRANGE', KEYS[1], bytes - 1, '\0')
  call('SETRANGE', KEYS[1], 0, ARGV[1])
  call('UNLINK', KEYS[3])
else
  call('RENAME', KEYS[3], KEYS[1])
end
if has_set then
  call('RENAME', KEYS[4], KEYS[2])
  call('PERSIST', KEYS[2])
end
call('PERSIST', KEYS[1])
for position = 5, kept do
  call('PERSIST', KEYS[position])
end
return 1
