"""The new lines of files, by a pool of processes.

python process_pool.py fork FILE ...
python process_pool.py spawn FILE ...
"""

from __future__ import annotations

import multiprocessing
import sys

from bloomlock import BloomFilter

seen: BloomFilter


def start() -> None:
    """Make the filter, or attach to it."""
    global seen
    seen = BloomFilter("lines", capacity=1_000_000)


def new_lines(path: str) -> list[str]:
    """Return the lines that no process has seen before."""
    with open(path) as lines:
        return [line for line, is_new in seen.add_each(lines) if is_new]


if __name__ == "__main__":
    method, *paths = sys.argv[1:]
    context = multiprocessing.get_context(method)
    if method == "fork":
        start()  # once: a child of fork opens connections of its own
        pool = context.Pool()
    else:
        pool = context.Pool(initializer=start)  # in each process: a filter cannot be pickled
    with pool:
        for lines in pool.imap_unordered(new_lines, paths):
            sys.stdout.writelines(lines)
