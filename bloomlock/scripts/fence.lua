-- Give a shard the header of a new generation, so that no update to it is answered any more. Safe to
-- repeat, and to come late.
-- KEYS[1]   the shard
-- ARGV[1]   the header it has, 8 bytes; ARGV[2] the one it gets. Both without the flags that items
--           were forgotten, or that it has grown, which it keeps
-- ARGV[3]   the length it has at least
-- Reply     1 if it has that header, now or before; 0, and nothing is changed, if it is another one
local header, slices, forgets = read_header(KEYS[1])
if header == ARGV[2] then
  return 1
end
if header ~= ARGV[1] or redis.call('STRLEN', KEYS[1]) < tonumber(ARGV[3]) then
  return 0
end
redis.call('SETRANGE', KEYS[1], 0, flagged(ARGV[2], slices, forgets))
return 1
