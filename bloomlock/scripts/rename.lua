-- Give all keys of a filter other names and the filter a new generation; safe to repeat.
-- KEYS      1 the descriptor, 2 the new one; then pairs of a key and its new name: the shards, as
--           many as ARGV[4] says, the counts of their claims, the sets of their tombstones, all others
-- ARGV[1]   the header of the shards, 8 bytes; ARGV[2] their new one. Both without flags, which
--           each shard keeps
-- ARGV[3]   the new generation, as it stands in the descriptor
-- ARGV[4]   how many shards
-- Reply     0 if it is done, now or before; 1 if the filter is another one; 2 if the new name is
--           taken; nothing is changed then
local call = redis.call
local shards = tonumber(ARGV[4])
if call('HGET', KEYS[2], 'generation') == ARGV[3] then
  return 0
end
local has_set = {}
for shard = 1, shards do
  local header
  header, has_set[shard] = read_header(KEYS[2 * shard + 1])
  if header ~= ARGV[1] then
    return 1
  end
end
if call('EXISTS', KEYS[2]) == 1 or string.find(call('GETRANGE', KEYS[4], 0, 7), '[^%z]') then
  return 2
end
for i = 1, #KEYS, 2 do
  -- What is left at a new name is no part of a filter: it has no descriptor.
  call('UNLINK', KEYS[i + 1])
  if call('EXISTS', KEYS[i]) == 1 then
    call('RENAME', KEYS[i], KEYS[i + 1])
  end
end
call('HSET', KEYS[2], 'generation', ARGV[3])
for shard = 1, shards do
  call('SETRANGE', KEYS[2 * shard + 2], 0, flagged(ARGV[2], has_set[shard]))
  if has_set[shard] then
    exchange_sentinel(KEYS[2 * (2 * shards + shard) + 2], ARGV[1], ARGV[2])
  end
  local counts = KEYS[2 * (shards + shard) + 2]
  if call('HGET', counts, 'header') == ARGV[1] then
    call('HSET', counts, 'header', ARGV[2])
  end
end
return 0
