-- Add items again whose bits are all set and that have a tombstone. Sent once.
-- KEYS[1]  the shard, KEYS[2] the set of its tombstones
-- ARGV[1]  the header the caller expects, 8 bytes, without flags
-- ARGV[2]  the identities of the items, 16 bytes each
-- Reply    {header found, for each item "1" new, "0" seen}; {header found} alone: another generation;
--          {header found, "lost"}: the set was evicted. Nothing is done then
local call = redis.call
local found = call('GETRANGE', KEYS[1], 0, 7)
if read_header(KEYS[1]) ~= ARGV[1] then
    return {found}
end
if call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then
    return {found, 'lost'}
end
-- The set shrinks again. An item of which a bit were missing had no tombstone.
local new = {}
for start = 1, #ARGV[2], 16 do
    new[#new + 1] = call('SREM', KEYS[2], string.sub(ARGV[2], start, start + 15))
end
return {found, table.concat(new)}
