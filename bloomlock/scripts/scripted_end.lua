
end
return {has_discards and 3 or 1, script(rest(KEYS, 2 * shards + 1), rest(ARGV, 6 + 2 * shards))}
