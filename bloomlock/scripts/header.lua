-- Headers of shards, for scripts that go by the generation alone; put before them.

local HAS_GROWN, FORGETS = 1, 2

-- Return the header of a shard without what says that items were forgotten or that it has grown;
-- how many slices it has beside the first; and whether items were forgotten.
local function read_header(key)
  local header = redis.call('GETRANGE', key, 0, 7)
  local flags, slices = string.byte(header, 2), 0
  if #header < 8 or flags == 0 or flags > HAS_GROWN + FORGETS then
    return header, slices, false
  end
  local last = string.byte(header, 8)
  if flags % FORGETS == HAS_GROWN then
    slices = last % 16
  end
  header = string.sub(header, 1, 1) .. '\0' .. string.sub(header, 3, 7) ..
    string.char(last - slices)
  return header, slices, flags >= FORGETS
end

-- Return a header, as read_header does, with what it says of slices and forgotten items.
local function flagged(header, slices, forgets)
  local flags = (slices > 0 and HAS_GROWN or 0) + (forgets and FORGETS or 0)
  return string.sub(header, 1, 1) .. string.char(flags) .. string.sub(header, 3, 7) ..
    string.char(string.byte(header, 8) + slices)
end
