-- Give a shard the header of a new generation, so that no update to it is answered any more. Safe to
-- repeat, and to come late.
-- KEYS[1]   the shard, KEYS[2] the set of its tombstones
-- ARGV[1]   the header it has, 8 bytes; ARGV[2] the one it gets. Both without flags, which it keeps
-- ARGV[3]   the length it has at least
-- Reply     1 if it has that header, now or before; 0, and nothing is changed, if it is another one
local header = read_header(KEYS[1])
if header == ARGV[2] then
  return 1
end
if header ~= ARGV[1] or redis.call('STRLEN', KEYS[1]) < tonumber(ARGV[3]) then
  return 0
end
change_header(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return 1
