-- Say when the keys of a shard expire. Safe to repeat.
-- KEYS[1]   the shard; the others expire with it, as far as they are there
-- ARGV[1]   the header it is expected to have, 8 bytes, without flags
-- ARGV[2]   in how many ms they expire; 0: never
-- Reply     1 if it is done; 0, and nothing is changed, if it has another header
if read_header(KEYS[1]) ~= ARGV[1] then
  return 0
end
-- One moment for all: of a shard and its tombstones none is there without the other.
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
for _, key in ipairs(KEYS) do
  if ARGV[2] == '0' then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIREAT', key, until_ms)
  end
end
return 1
