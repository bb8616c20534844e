-- Add items and end their claims, in one step.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on for each item its id, token and places
-- Reply: {header, for each item 1, or 0 if another worker claimed it since, or a string, and nothing
--       done for it: the version that it has, if its places are of another}; {"behind"}, and
--       nothing done, if the shard has to turn to the epoch of the clock first; {"grown", slices}, and
--       nothing done, if it has not as many slices as the caller believes
if has_grown then
    return {'grown', num_slices}
end
if window and window.is_behind then
    return {'behind'}
end
use(every(2, 3))
local tokens, places = every(3, 3), every(4, 3)
local others = other_versions(places)
local lost = read('ZMSCORE', KEYS[5], tokens)
local reply, committed = {header}, {}
for i, id in ipairs(ids) do
    local found = read_record(id)
    if others[i] then
        reply[i + 1] = others[i]
    elseif lost[tokens[i]] or (found and found.token ~= tokens[i]) then
        reply[i + 1] = 0
    else
        committed[#committed + 1] = places[i]
        cured[#cured + 1] = id
        if found then
            finish(id, found, 'committed')
        end
        reply[i + 1] = 1
    end
end
bits_of(committed, 'BITFIELD', 'SET')
return done(reply)
