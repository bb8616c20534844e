"""Several processes, one name: each line is written by exactly one of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "lock"])
def test_each_line_is_written_once_in_all(start, name, tmp_path, strategy):
    count = 2000 if strategy == "lock" else 10_000
    lines = [b"item %d" % i for i in range(count)]
    processes = []
    for number in range(4):
        random.Random(number).shuffle(lines)
        file = tmp_path / str(number)
        file.write_bytes(b"\n".join(lines + lines[:100]) + b"\n")
        output = (tmp_path / f"{number}.out").open("wb")
        with output:
            processes.append(
                start("dedup", "--name", name, "--strategy", strategy, str(file), stdout=output)
            )
    for process in processes:
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, b"")
    written = [(tmp_path / f"{number}.out").read_bytes().splitlines() for number in range(4)]
    assert Counter(line for each in written for line in each) == Counter(lines)


@pytest.mark.processes
def test_of_many_adds_of_one_item_one_succeeds(start, name):
    processes = [start("add", "-q", name, "the item") for _ in range(6)]
    assert sorted(process.wait(60) for process in processes) == [0, 1, 1, 1, 1, 1]
