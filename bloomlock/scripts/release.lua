-- Delete a lock if it still holds the caller's token; nothing otherwise. Safe to repeat.
-- KEYS[1]   the lock
-- ARGV[1]   the token
-- Reply     1 if it was deleted, else 0
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
