-- One step of a worker: renew its lease, queue requests, end those that are done, take others.
-- Safe to repeat under the same number. The crawl ends in the step that finds nothing to do and all
-- workers idle.
-- KEYS: see crawl_common.lua
-- ARGV[1]: worker, lease (ms), dead (workers), id (of the crawl), generation (of its filter), step (its
--          number), fifo, retries, done (ids), failed (pairs of id and error), wanted (how many to take),
--          busy (host -> how many the worker has), slots (host -> {how many it may have, delay in ms}),
--          limit and delay_ms (of all other hosts), idle, stays (it never ends by itself)
-- ARGV: then for each push its mode, its host NUL priority and whether it is a start request, and its
--       entry. Item i of the filter is that of push i. Modes:
--       n: queue if the filter does not have it, and add it; a: queue; r: add and queue;
--       l: ask whether the filter has it; f: keep it among the failed with the error that stands for the
--       host. One that stays in the worker has no entry, and is not queued
-- Reply: a JSON object, then the members of the queue that were taken, in the order of their ids. It has:
--        state, "gone" and nothing else if the server has another crawl or none; recovered (how many dead
--        workers had); due_s (until the next host may be asked); is_full (a host is due of which the
--        worker has enough); pushed (a digit for each push, 1 if it was wanted); workers; ids
local MOST_FAILED, RETRY_MS = 10000, 10000
local id, state, generation = unpack(call('HMGET', KEYS[1], 'id', 'state', 'generation'))
if id ~= told.id or (generation and generation ~= told.generation) then
    return {cjson.encode({state = 'gone'})}
end
call('HSET', KEYS[1], 'generation', told.generation)
hold_lease()
local recovered = release_dead()
local due_s, is_full

local function reply(flags, ids)
    local words, there = {''}, {}
    for _, id in ipairs(ids) do
        local member = call('HGET', KEYS[5], id)
        if member then
            words[#words + 1] = member
            there[#there + 1] = id
        end
    end
    words[1] = answer(state, {recovered = recovered, due_s = due_s, is_full = is_full, pushed = flags,
        workers = call('ZRANGE', KEYS[6], 0, -1), ids = there})
    return words
end

local last = cjson.decode(call('HGET', KEYS[7], told.worker) or '{}')
if last.step == told.step then
    return reply(last.flags, last.ids)
end

local function keep_failed(turn, entry)
    if call('HLEN', KEYS[8]) < MOST_FAILED then
        call('HSET', KEYS[8], turn, entry)
    end
end

local flags, pushed = {}, 0
for item = 1, (#ARGV - 1) / 3 do
    local mode, head, entry = ARGV[3 * item - 1], ARGV[3 * item], ARGV[3 * item + 1]
    local is_wanted = true
    if mode == 'n' then
        is_wanted = add(item)
    elseif mode == 'l' then
        is_wanted = not exists(item)
    elseif mode == 'r' then
        add(item)
    elseif mode == 'f' then
        local turn = next_turn(false)
        keep_failed(turn, head .. '\0\0' .. '800000000' .. turn .. '00\0' .. entry)
    end
    flags[item] = is_wanted and '1' or '0'
    if is_wanted and entry ~= '' and mode ~= 'f' then
        put(head .. next_turn(told.fifo or string.sub(head, -1) == '1') .. '00\0' .. entry)
        pushed = pushed + 1
    end
end
flags = table.concat(flags)

for _, id in ipairs(told.done or {}) do
    call('HINCRBY', KEYS[1], 'done', call('HDEL', KEYS[5], id))
end
for _, pair in ipairs(told.failed or {}) do
    local member = call('HGET', KEYS[5], pair[1])
    if member then
        call('HDEL', KEYS[5], pair[1])
        local host, rank, rest = split(member)
        local failures = tonumber(string.sub(rank, 24), 16) + 1
        if failures <= told.retries then
            -- Behind everything else.
            rank = 'ffffffff0' .. next_turn(true) .. string.format('%02x', failures)
            call('ZADD', KEYS[4], now_ms + RETRY_MS * failures, host .. rank .. rest)
        else
            keep_failed(turn_of(member), string.gsub(pair[2], '%z', ' ') .. '\0' .. member)
        end
    end
end
for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[4], 0, now_ms)) do
    put(member)
    call('ZREM', KEYS[4], member)
end

-- Take one request from each host in turn, so that all hosts are at work. A host may be asked an
-- eighth of its delay early, as it takes a while until the worker sends the request.
local early_ms = told.delay_ms / 8
local function take(ids, wanted)
    local has_found = false
    local due = call('ZRANGEBYSCORE', KEYS[3], 0, now_ms + early_ms, 'WITHSCORES', 'LIMIT', 0,
        2 * wanted + 64)
    for position = 1, #due, 2 do
        local host, due_ms = due[position], tonumber(due[position + 1])
        if #ids == wanted then
            return false
        end
        local slot, busy = told.slots[host] or {told.limit, told.delay_ms}, told.busy[host] or 0
        if busy >= slot[1] then
            is_full = true
        elseif due_ms <= now_ms + slot[2] / 8 then
            local first = call('ZRANGEBYLEX', KEYS[2], '[' .. host .. '\0', '(' .. host .. '\1',
                'LIMIT', 0, 1)[1]
            has_found = true
            if first then
                ids[#ids + 1] = told.worker .. ':' .. turn_of(first)
                call('ZREM', KEYS[2], first)
                call('HSET', KEYS[5], ids[#ids], first)
                -- Who comes late makes up for a part of it, so that the rate is kept.
                local late_ms = now_ms - due_ms < slot[2] and now_ms - due_ms or 0
                call('ZADD', KEYS[3], now_ms - math.min(late_ms, slot[2] / 4) + slot[2], host)
                told.busy[host] = busy + 1
            else
                call('ZREM', KEYS[3], host)
            end
        end
    end
    return has_found
end

local ids = {}
told.busy = told.busy or {}
while #ids < (told.wanted or 0) and take(ids, told.wanted) do end
local soon = call('ZRANGEBYSCORE', KEYS[3], '(' .. now_ms + early_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if soon[2] then
    due_s = (soon[2] - now_ms - early_ms) / 1000
end

local is_idle = told.idle and pushed == 0 and #ids == 0
call('HSET', KEYS[7], told.worker, cjson.encode({step = told.step, flags = flags, ids = ids,
    idle = is_idle, stays = told.stays}))
if pushed > 0 or #ids > 0 then
    state = 'running'
elseif is_idle and waiting() == 0 and call('HLEN', KEYS[5]) == 0 then
    local next_state = 'ended'
    for _, worker in ipairs(call('ZRANGE', KEYS[6], 0, -1)) do
        local step = cjson.decode(call('HGET', KEYS[7], worker) or '{}')
        if not step.idle then
            next_state = state
            break
        elseif step.stays then
            next_state = 'waiting'
        end
    end
    state = next_state
end
call('HSET', KEYS[1], 'state', state)
return reply(flags, ids)
