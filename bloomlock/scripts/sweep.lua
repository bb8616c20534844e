-- Delete what an update left of a shard that was gone: a string without a header. Safe to repeat.
-- KEYS[1]   where the shard was
-- ARGV[1]   the length a shard has
-- Reply     1 if there was such a string, else 0
local call = redis.call
if call('EXISTS', KEYS[1]) == 0 or call('STRLEN', KEYS[1]) > tonumber(ARGV[1]) then
  return 0
end
if string.find(call('GETRANGE', KEYS[1], 0, 7), '[^%z]') then
  return 0
end
return call('UNLINK', KEYS[1])
