"""The new rows of CSV files, by any number of processes at a time.

python pandas_chunks.py OUT.csv IN.csv ...
"""

from __future__ import annotations

import sys

import pandas as pd

from bloomlock import BloomFilter


def new_rows(chunk: pd.DataFrame, seen: BloomFilter) -> pd.DataFrame:
    """Return the rows whose address no process has seen before."""
    chunk = chunk.dropna(subset=["email"])
    return chunk[seen.add_many(chunk["email"].str.casefold())]


if __name__ == "__main__":
    out, *paths = sys.argv[1:]
    with BloomFilter("emails", capacity=10_000_000) as seen, open(out, "w") as file:
        for path in paths:
            for chunk in pd.read_csv(path, chunksize=100_000):
                new_rows(chunk, seen).to_csv(file, index=False, header=file.tell() == 0)
