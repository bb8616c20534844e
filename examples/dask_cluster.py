"""Each URL of text files is fetched once, by the workers of Dask.

python dask_cluster.py FILE ...
"""

from __future__ import annotations

import os
import sys
import time
from urllib.request import Request, urlopen

from dask.distributed import Client, LocalCluster

from bloomlock import BloomFilter

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
LEASE = 10.0


def fetched() -> BloomFilter:
    """Attach to the filter. A process does so for each task, as a filter cannot be pickled."""
    return BloomFilter("fetched", capacity=10_000_000, client=URL)


def fetch(url: str) -> None:
    """Fetch a page and store it."""
    urlopen(Request(url, method="POST"))


def fetch_new(path: str) -> int:
    """Fetch what no task has fetched; Dask runs the task again where its worker dies."""
    count = 0
    with fetched() as pages, open(path) as lines:
        for url in lines:
            with pages.claim(url.strip(), LEASE) as claim:
                if claim:
                    fetch(claim.item)
                    count += 1
    return count


def fetch_left_over() -> int:
    """Fetch what workers had that died, when their leases are over."""
    count = 0
    with fetched() as pages:
        while pages.count_claims().open:
            for claim in pages.expired():
                with claim:
                    fetch(claim.item)
                    count += 1
            time.sleep(1)
    return count


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        tasks = client.map(fetch_new, sys.argv[1:])
        print("fetched:", sum(client.gather(tasks)) + fetch_left_over())
