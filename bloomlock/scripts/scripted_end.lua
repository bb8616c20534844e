
end
return {1, script(rest(KEYS, shards + 1), rest(ARGV, 6))}
