
end
return {1, script(rest(KEYS, shards + tables + 1), rest(ARGV, 8))}
