-- Delete a shard that is of one of some generations. Safe to repeat, and to come late.
-- KEYS   1 the shard; 2 what goes in any case; the rest goes with the shard
-- ARGV   headers, 8 bytes each, without flags; zeros also stand for what is no filter's string
-- Reply  1 if the shard was one of these, else 0
local found = redis.pcall('STRLEN', KEYS[1])
local header = '\0\0\0\0\0\0\0\0'
if type(found) == 'number' and found >= 8 then
  header = read_header(KEYS[1])
end
if KEYS[2] then
  redis.call('UNLINK', KEYS[2])
end
for _, one in ipairs(ARGV) do
  if header == one then
    redis.call('UNLINK', unpack(KEYS))
    return 1
  end
end
return 0
