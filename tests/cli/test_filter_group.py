"""`bloomlock filter`: algebra, expiry, names."""

from __future__ import annotations

import re

import pytest
import redis

from bloomlock import BloomFilter, list_filters


@pytest.fixture
def pair(valkey, name):
    """Two filters of which items are 0 to 199 and 100 to 299."""
    names = f"{name}-a", f"{name}-b"
    for which, first in zip(names, (0, 100), strict=True):
        with BloomFilter(which, 5000, client=valkey, shards=2) as made:
            made.update(map(str, range(first, first + 200)))
    return names


def count_of(name, valkey):
    with BloomFilter.open(name, client=valkey) as found:
        return found.count()


def test_union_and_intersection(run, name, pair, valkey):
    for command, expected in (("union", 300), ("intersection", 100)):
        dry = run("filter", command, *pair, "--into", name, "--dry-run")
        assert (dry.returncode, dry.stderr) == (0, b"")
        assert f"would make '{name}'".encode() in dry.stdout
        done = run("filter", command, *pair, "--into", name)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert count_of(name, valkey) == pytest.approx(expected, abs=2)
        again = run("filter", command, *pair, "--into", name)
        assert (again.returncode, again.stderr.count(b"\n")) == (2, 1)
        assert b"is taken by another filter" in again.stderr
        assert run("filter", command, *pair, "--into", name, "-n").returncode == 2
        assert run("delete", "--yes", name).returncode == 0
    assert run("filter", "jaccard", *pair).stdout[:4] in (b"0.33", b"0.34", b"0.32")
    assert run("filter", "union", *pair).returncode == 0
    assert count_of(pair[0], valkey) == pytest.approx(300, abs=2)
    refused = run("filter", "intersection", *pair)
    assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)
    assert b"give --yes" in refused.stderr
    dry = run("filter", "intersection", *pair, "--dry-run")
    assert b"67% of all items are in both" in dry.stdout
    assert count_of(pair[0], valkey) == pytest.approx(300, abs=2)
    assert run("filter", "intersection", *pair, "--yes").returncode == 0
    assert count_of(pair[0], valkey) == pytest.approx(200, abs=2)


def test_unequal_filters_are_one_sentence(run, name, pair, valkey):
    BloomFilter(name, 1000, client=valkey).close()
    for command in ("union", "intersection", "jaccard"):
        done = run("filter", command, pair[0], name)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
        assert b"cannot be combined: num_bits: " in done.stderr
    done = run("filter", "union", pair[0], "none")
    assert (done.returncode, done.stderr) == (2, b"bloomlock: there is no filter named 'none'\n")


def test_expiry(run, pair):
    assert run("filter", "ttl", pair[0]).returncode == 1
    assert run("filter", "expire", pair[0], "2h").returncode == 0
    done = run("filter", "ttl", pair[0])
    assert 3600 < float(done.stdout) <= 7200
    assert re.search(rb"^expires in +[3-7]\d{3} s$", run("info", pair[0]).stdout, re.MULTILINE)
    assert b"expires" not in run("info", pair[1]).stdout
    assert run("filter", "persist", pair[0]).returncode == 0
    assert run("filter", "ttl", pair[0]).stdout == b""
    for wrong in ("soon", "-1", "5y", "0"):
        done = run("filter", "expire", "--", pair[0], wrong)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


def test_rename(run, name, pair, valkey):
    assert run("filter", "rename", pair[0], name, "--dry-run").stdout == (
        f"would rename '{pair[0]}' to '{name}'\n".encode()
    )
    assert pair[0] in list_filters(client=valkey)
    assert run("filter", "rename", pair[0], name).returncode == 0
    assert count_of(name, valkey) == pytest.approx(200, abs=2)
    for arguments in ([pair[0], "other"], [name, pair[1]], [name, name]):
        for more in ([], ["--dry-run"]):
            done = run("filter", "rename", *arguments, *more)
            assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    with redis.Redis.from_url(valkey) as client:
        assert not client.keys(f"*{pair[0]}*")
