-- Add items and end their claims, in one step.
-- KEYS: see claim_common.lua
-- ARGV: from 2 on for each item its id, token and places
-- Reply: {header, for each item 1, or 0 if another worker claimed it since, or its claim is over and
--       it was discarded since}
use(every(2, 3))
local tokens, places = every(3, 3), every(4, 3)
local why = read_shard(true)
if why then
    return why
end
local lost = read('ZMSCORE', KEYS[5], tokens)

-- Whether the claim is this worker's still: it is open, or failed and may be committed yet.
local function is_own(id, token)
    local found = read_record(id)
    if found then
        return found.token == token
    end
    local failure = read_failure(id)
    return failure and failure.token == token
end

local reply = {found_header}
for i, id in ipairs(ids) do
    local found, is_mine = read_record(id), is_own(id, tokens[i])
    -- Without a record the commit was carried out before, and this one is a repetition, or a late
    -- one. If the item has a tombstone it was discarded since, which must not be undone.
    if lost[tokens[i]] or (found and not is_mine) or (dead[id] and not is_mine) then
        reply[i + 1] = 0
    else
        put_item(slices, places[i], 1)
        cured[#cured + 1] = id
        if dead[id] then
            raised[#raised + 1] = id
        end
        if found then
            finish(id, found, 'committed')
        end
        reply[i + 1] = 1
    end
end
return done(reply)
