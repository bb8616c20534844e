"""What happens between two commands of one operation, made to happen there."""

from __future__ import annotations

from collections import Counter

import pytest

from bloomlock import BloomFilter


def touch(r, names):
    """Write each key as it is, and create and delete each name that is not there."""
    for name in names:
        if not r.exists(name):
            r.set(name, "")
            r.delete(name)
    for key in r.scan_iter():
        left_ms, dumped = r.pttl(key), r.dump(key)
        if dumped is not None:
            r.restore(key, max(0, left_ms), dumped, replace=True)


def cleared(made, _path):
    made.clear()
    assert not made.exists("there")
    return made


def deleted(made, _path):
    assert made.delete()
    made.reattach()
    return made


def imported(made, path):
    made.export_file(path)
    brought = BloomFilter.import_file("y", path, client=made._client, replace=True)
    assert brought.exists("there")
    return brought


def rebuilt(made, _path):
    made.rebuild(["there"], capacity=3000)
    assert made.exists("there")
    return made


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("operate", [cleared, deleted, imported, rebuilt])
def test_a_transaction_that_is_refused_is_tried_again(r, proxy, tmp_path, operate, shards):
    refused = []
    tries = Counter()

    def judge(name, _number):
        if name == "EXEC":
            tries["now"] += 1
            # Every second one, so each of an operation's is refused at some time.
            if tries["now"] % 2:
                refused.append(name)
                touch(r, ["bloomlock:{y}:meta"])
        return "pass"

    proxy.judge = judge
    made = BloomFilter("y", 2000, client=proxy.url, shards=shards, on_lost="recreate")
    made.add("there")
    made = operate(made, tmp_path / "y.bloom")
    assert refused
    assert made.add("later")
    proxy.judge = lambda _name, _number: "pass"
    assert BloomFilter.open("y", client=r).exists("later")
    made.close()
