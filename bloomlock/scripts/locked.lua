-- Do what follows only while the caller holds some locks; put before items.lua.
-- KEYS[3] and on  the locks, each of which has to hold the token, the last argument
-- Reply           {} if one does not: nothing is done
local token = table.remove(ARGV)
for i = 3, #KEYS do
  if redis.call('GET', KEYS[i]) ~= token then
    return {}
  end
end
