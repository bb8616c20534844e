-- Give all keys of a filter other names and the filter a new generation; safe to repeat.
-- KEYS   1 the descriptor, 2 the new one; then pairs of a key and its new name: of each shard first the
--        string, then its tombstones
-- ARGV   1 the header of the shards, 8 bytes, 2 their new one, both without flags, which each shard
--        keeps; 3 the new generation, as it stands in the descriptor; 4 how many keys are of a shard
-- Reply  "done", now or before; "changed" if the filter is another one, "taken" if the new name is;
--        nothing is changed then
local call, size = redis.call, tonumber(ARGV[4])
if call('HGET', KEYS[2], 'generation') == ARGV[3] then
  return 'done'
end
for at = 3, #KEYS, size do
  if read_header(KEYS[at]) ~= ARGV[1] then
    return 'changed'
  end
end
if call('EXISTS', KEYS[2]) == 1 or string.find(call('GETRANGE', KEYS[4], 0, 7), '[^%z]') then
  return 'taken'
end
for at = 1, #KEYS, 2 do
  -- What is left at a new name is no part of a filter: it has no descriptor.
  call('UNLINK', KEYS[at + 1])
  if call('EXISTS', KEYS[at]) == 1 then
    call('RENAME', KEYS[at], KEYS[at + 1])
  end
end
call('HSET', KEYS[2], 'generation', ARGV[3])
for at = 3, #KEYS, size do
  change_header(KEYS[at + 1], KEYS[at + 3], ARGV[1], ARGV[2])
end
return 'done'
