-- Give a shard the header of a new generation, so that no update to it is answered any more.
-- KEYS[1]   the shard
-- ARGV[1]   the header it has, 8 bytes; ARGV[2] the one it gets. Both without the flag that items
--           were forgotten, which it keeps
-- ARGV[3]   the length it has at least
-- Reply     1 if it has that header, now or before; 0, and nothing is changed, if it is another one
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
local flag = string.sub(header, 2, 2)
if flag == '\2' then
  header = string.sub(header, 1, 1) .. '\0' .. string.sub(header, 3)
end
if header == ARGV[2] then
  return 1
end
if header ~= ARGV[1] or redis.call('STRLEN', KEYS[1]) < tonumber(ARGV[3]) then
  return 0
end
redis.call('SETRANGE', KEYS[1], 0, string.sub(ARGV[2], 1, 1) .. flag .. string.sub(ARGV[2], 3))
return 1
