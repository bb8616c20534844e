"""Programs that go through data with several processes: of an item that all of them have, one."""

from __future__ import annotations

from collections import Counter

import pytest
import servers
from claim_tools import let_expire

from bloomlock import BloomFilter

pytestmark = pytest.mark.processes
LINES = [f"line {number}" for number in range(3_000)]


@pytest.fixture
def files(tmp_path):
    """Files that share two thirds of their lines."""
    paths = [tmp_path / f"lines-{number}.txt" for number in range(4)]
    for number, path in enumerate(paths):
        first = 500 * number
        path.write_text("".join(f"{line}\n" for line in LINES[first : first + 1500]))
    return paths


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes(start, files, method):
    printed = start("multiprocessing", "process_pool.py", method, *files).finish()
    assert Counter(printed.splitlines()) == Counter(LINES)


def test_pandas(start, files, tmp_path, valkey):
    for path in files:
        path.write_text("email\n" + path.read_text().replace("line ", "Line ") + '""\n')
    with BloomFilter("emails", capacity=10_000_000, client=valkey) as seen:
        seen.update(LINES[:1000])
    start("pandas", "pandas_chunks.py", out := tmp_path / "out.csv", *files).finish()
    assert Counter(out.read_text().lower().splitlines()[1:]) == Counter(LINES[1000:])


def test_dask(start, service, tmp_path, valkey, r):
    """What a worker had that died is fetched at the end, when its lease is over."""
    urls = [f"{service.url}/{number}" for number in range(60)]
    files = [tmp_path / f"urls-{number}.txt" for number in range(4)]
    for number, path in enumerate(files):
        path.write_text("".join(f"{url}\n" for url in urls[10 * number : 10 * number + 30]))
    with BloomFilter("fetched", capacity=10_000_000, client=valkey) as dead:
        dead.claim(urls[25], 600, renew=False)
    program = start("distributed", "dask_cluster.py", *files)
    program.wait_for(lambda: service.done.total() == 59)
    let_expire(r)
    printed = program.finish()
    assert service.done == Counter(f"/{number}" for number in range(60))
    assert "fetched:" in printed


def test_spark(start, valkey, tmp_path):
    servers.require_spark()
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(4):
        lines = LINES[500 * number : 500 * number + 1500]
        (source / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    with BloomFilter("lines", capacity=10_000_000, client=valkey) as seen:
        seen.update(LINES[:1000])
        start("pyspark", "spark_partitions.py", source, target).finish()
        new = [line for part in target.glob("part-*") for line in part.read_text().splitlines()]
        assert Counter(new) == Counter(LINES[1000:])
        assert all(seen.exists_many(LINES))
