-- Headers of shards, for scripts that go by the generation alone; put before them.

local HAS_GROWN, FORGETS = 1, 2

-- Return the header of a shard without what says that items were forgotten or that it has grown; the
-- byte that says so; and how many slices it has beside the first.
local function read_header(key)
  local header = redis.call('GETRANGE', key, 0, 7)
  local flag, slices = string.byte(header, 2), 0
  if #header == 8 and (flag == HAS_GROWN or flag == FORGETS) then
    local last = string.byte(header, 8)
    slices = flag == HAS_GROWN and last % 16 or 0
    header = string.sub(header, 1, 1) .. '\0' .. string.sub(header, 3, 7) ..
      string.char(last - slices)
  end
  return header, flag, slices
end

-- Return a header of another generation that says the same of forgotten items and slices.
local function flagged(header, flag, slices)
  return string.sub(header, 1, 1) .. string.char(flag) .. string.sub(header, 3, 7) ..
    string.char(string.byte(header, 8) + slices)
end
