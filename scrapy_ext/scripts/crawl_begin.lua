-- Begin a crawl, join it, or go on with one that was stopped.
-- KEYS: see crawl_common.lua
-- ARGV[1]: worker, lease (ms), dead (workers), id (of a new crawl), resume, attributes (a text; null:
--          they are not compared), overwrites (an existing file would be lost), keeps_failed
-- Reply: a JSON object: what, id, workers, begun (ms), done, waiting, failed, generation, attributes,
--        before (id of the crawl before). What is "begun", "joined" or "resumed"; and, nothing done,
--        "attributes" if they differ, "overwrites", or "lives" if it may not be resumed and others are
--        at work
release_dead()
local state = call('HGET', KEYS[1], 'state')
local live, before = call('ZCARD', KEYS[6]), call('HGET', KEYS[1], 'id')

local function reply(what)
    local fields = call('HMGET', KEYS[1], 'id', 'begun', 'done', 'generation', 'attributes')
    return cjson.encode({what = what, id = fields[1], workers = live, begun = fields[2],
        done = tonumber(fields[3] or 0), waiting = call('ZCARD', KEYS[2]) + call('ZCARD', KEYS[4]),
        failed = call('HLEN', KEYS[8]), generation = fields[4], attributes = fields[5], before = before})
end

if state and state ~= 'ended' then
    if not told.resume and live > 0 then
        return reply('lives')
    elseif told.resume then
        local theirs = call('HGET', KEYS[1], 'attributes')
        if theirs and told.attributes ~= cjson.null and told.attributes ~= theirs then
            return reply('attributes')
        elseif live == 0 and told.overwrites then
            return reply('overwrites')
        end
        hold_lease()
        return reply(live > 0 and 'joined' or 'resumed')
    end
end

call('UNLINK', unpack(KEYS, 1, 7))
call('UNLINK', KEYS[9])
if not told.keeps_failed then
    call('UNLINK', KEYS[8])
end
call('HSET', KEYS[1], 'id', told.id, 'state', 'running', 'begun', string.format('%.0f', now_ms),
    'turn', 0, 'done', 0)
if told.attributes ~= cjson.null then
    call('HSET', KEYS[1], 'attributes', told.attributes)
end
live = 0
hold_lease()
return reply('begun')
