-- Headers of shards, for scripts that go by the generation alone; put before them.

local HAS_SET = 2

-- Return the header of a shard without its flag; whether there is a set of tombstones; and the header
-- as it is.
local function read_header(key)
  local header = redis.call('GETRANGE', key, 0, 7)
  if string.byte(header, 2) ~= HAS_SET then
    return header, false, header
  end
  return string.sub(header, 1, 1) .. '\0' .. string.sub(header, 3), true, header
end

-- Return a header, as read_header does, with the flag if there is a set of tombstones.
local function flagged(header, has_set)
  if not has_set then
    return header
  end
  return string.sub(header, 1, 1) .. string.char(HAS_SET) .. string.sub(header, 3)
end

-- Let keys expire with a shard, if it does.
local function expire_with(shard, ...)
  local left_ms = redis.call('PTTL', shard)
  for _, key in ipairs(left_ms >= 0 and {...} or {}) do
    -- 0 is its last millisecond; PEXPIRE 0 would delete.
    redis.call('PEXPIRE', key, math.max(left_ms, 1))
  end
end

-- Give a shard the header of another generation, and its set of tombstones the sentinel. A set that was
-- evicted is not made again: it would look as if nothing had been discarded.
local function change_header(key, set, before, after)
  local _, has_set = read_header(key)
  local is_sorted = has_set and redis.call('TYPE', set).ok == 'zset'
  if is_sorted and redis.call('ZREM', set, before) == 1 then
    redis.call('ZADD', set, '+inf', after)
  elseif has_set and not is_sorted and redis.call('SREM', set, before) == 1 then
    redis.call('SADD', set, after)
  end
  -- A set that had the sentinel alone is a new key now.
  expire_with(key, set)
  redis.call('SETRANGE', key, 0, flagged(after, has_set))
end
