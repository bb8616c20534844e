-- Delete what an update left of a shard that was gone: a string without a header. Or cut off what an
-- update with the places of a larger filter has added to the shard of another. Safe to repeat.
-- KEYS[1]   where the shard was
-- ARGV[1]   the length it had
-- ARGV[2]   the header of the filter that is there now, 8 bytes; empty if there is none
-- ARGV[3]   the length of its shards
-- Reply     1 if there was such a string, else 0
local call = redis.call
local length = call('STRLEN', KEYS[1])
if length == 0 or length > tonumber(ARGV[1]) then
  return 0
end
local header = read_header(KEYS[1])
if not string.find(header, '[^%z]') then
  return call('UNLINK', KEYS[1])
end
if header ~= ARGV[2] or length <= tonumber(ARGV[3]) then
  return 0
end
call('SET', KEYS[1], call('GETRANGE', KEYS[1], 0, tonumber(ARGV[3]) - 1), 'KEEPTTL')
return 1
