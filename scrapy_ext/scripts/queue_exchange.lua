-- One step of a worker: renew its lease, put back what dead workers had, add and push requests, end
-- those that are done, and take others. Safe to repeat under the same number of the call.
-- KEYS: see queue_common.lua
-- ARGV: 3 number of the call (0: the worker begins), 4 lease in ms, 5 how many requests to take,
--       6 how many are pushed; for each of these a letter, a score and the request (empty: it is
--       not pushed); then the ids of those that are done. Item i of the filter is request i.
--       n: push if the filter does not have it, and add it; e: the same, but do not add it;
--       a: push; r: add and push; s and the fingerprint: add, and push if no start request of this
--       run was the same
-- Reply: {1 if the worker was not known, length of the queue, number of requests that are taken,
--       number that dead workers had, "1" or "0" for each pushed or not, then what was taken: id
--       and entry}
local number, lease_ms = ARGV[3], tonumber(ARGV[4])
local wanted, pushed = tonumber(ARGV[5]), tonumber(ARGV[6])

local is_known = call('ZSCORE', KEYS[3], worker)
call('ZADD', KEYS[3], string.format('%.0f', now_ms + lease_ms), worker)
local recovered = release_dead()
if number == '0' and call('ZCARD', KEYS[3]) == 1 and length() == 0
    and call('HLEN', KEYS[2]) == 0 then
    call('UNLINK', KEYS[5])
end

local function id_of(position)
    return string.format('%s:%012d:%04d', worker, number, position)
end

local function reply(flags, taken)
    return {is_known and 0 or 1, length(), call('HLEN', KEYS[2]), recovered, flags, unpack(taken)}
end

local last = call('HGET', KEYS[4], worker)
if last then
    local of, count, flags = string.match(last, '^(%d+) (%d+) (%d*)$')
    if of == number then
        local taken = {}
        for position = 1, tonumber(count) do
            local entry = call('HGET', KEYS[2], id_of(position))
            if entry then
                taken[#taken + 1] = id_of(position)
                taken[#taken + 1] = entry
            end
        end
        return reply(flags, taken)
    end
end

local function is_wanted(item, mode)
    local letter = string.sub(mode, 1, 1)
    if letter == 'n' then
        return add(item)
    end
    if letter == 'e' then
        return not exists(item)
    end
    if letter == 's' and call('SADD', KEYS[5], string.sub(mode, 2)) == 0 then
        return false
    end
    if letter ~= 'a' then
        add(item)
    end
    return true
end

local flags = {}
for item = 1, pushed do
    local at = 4 + 3 * item
    flags[item] = '0'
    if is_wanted(item, ARGV[at]) then
        flags[item] = '1'
        if ARGV[at + 2] ~= '' then
            push(ARGV[at + 1], ARGV[at + 2])
        end
    end
end
for position = 7 + 3 * pushed, #ARGV do
    call('HDEL', KEYS[2], ARGV[position])
end

local function pop()
    if order == 'priority' then
        local found = call('ZPOPMIN', KEYS[1])
        return found[1], found[2]
    end
    return call(order == 'fifo' and 'RPOP' or 'LPOP', KEYS[1]), '0'
end

local taken = {}
for position = 1, wanted do
    local request, score = pop()
    if not request then
        break
    end
    local entry = score .. ' ' .. request
    call('HSET', KEYS[2], id_of(position), entry)
    taken[#taken + 1] = id_of(position)
    taken[#taken + 1] = entry
end
local answers = table.concat(flags)
call('HSET', KEYS[4], worker, string.format('%s %d %s', number, #taken / 2, answers))
return reply(answers, taken)
