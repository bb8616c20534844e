-- Begin a crawl, join it, or go on with one that was stopped.
-- KEYS: see crawl_common.lua
-- ARGV[1]: worker, lease (ms), dead (workers), id (of a new crawl), resume, attributes (a text; empty:
--          they are not compared), overwrites (an existing file would be lost), keeps_failed
-- Reply: what, id, workers (before this one), begun_ms, done, generation, attributes, before (id of the
--        crawl before). What is "begun", "joined" or "resumed"; and, nothing done, "attributes" if they
--        differ, "overwrites", or "lives" if it may not be resumed and others are at work
release_dead()
local before, state, turn = unpack(call('HMGET', KEYS[1], 'id', 'state', 'turn'))
local workers, attributes = call('ZRANGE', KEYS[6], 0, -1), told.attributes or ''

local function reply(what)
    local fields = call('HMGET', KEYS[1], 'id', 'state', 'begun', 'done', 'generation', 'attributes')
    return answer(fields[2], {what = what, id = fields[1], workers = workers,
        begun_ms = tonumber(fields[3]), done = tonumber(fields[4]), generation = fields[5] or '',
        attributes = fields[6] or '', before = before or ''})
end

if state and state ~= 'ended' then
    if told.resume then
        local theirs = call('HGET', KEYS[1], 'attributes')
        if theirs and attributes ~= '' and attributes ~= theirs then
            return reply('attributes')
        elseif #workers == 0 and told.overwrites then
            return reply('overwrites')
        end
        hold_lease()
        return reply(#workers > 0 and 'joined' or 'resumed')
    elseif #workers > 0 then
        return reply('lives')
    end
end

call('UNLINK', unpack(KEYS, 1, told.keeps_failed and 7 or 8))
-- What failed is named by its turn, so no turn of what is kept comes again.
turn = told.keeps_failed and turn or 0
call('HSET', KEYS[1], 'id', told.id, 'state', 'running', 'begun', now_ms, 'turn', turn, 'done', 0)
if attributes ~= '' then
    call('HSET', KEYS[1], 'attributes', attributes)
end
workers = {}
hold_lease()
return reply('begun')
