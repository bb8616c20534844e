-- Do what follows only while the caller holds some locks; put before bits.lua.
-- KEYS[2] and on  the locks, each of which has to hold the token, the last argument
-- Reply           {} if one does not: nothing is done
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[#ARGV] then
    return {}
  end
end
