"""A distributed Bloom filter on plain Redis bitmaps."""
