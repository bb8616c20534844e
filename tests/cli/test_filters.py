"""`bloomlock filter`: what is shown, created, emptied, deleted and planned."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import timedelta

import pytest
from private import PrivateServer
from servers import with_bloom

from bloomlock import BloomFilter, Lock, plan


@pytest.fixture
def bloom(r, valkey, name):
    with BloomFilter(name, 5000, 0.001, client=valkey) as made:
        made.update(str(number) for number in range(1000))
        yield made


def table_of(done):
    assert (done.returncode, done.stderr) == (0, b"")
    return dict(re.split(r"  +", line.strip()) for line in done.stdout.decode().splitlines())


def test_info_is_a_table_or_json(run, name, bloom):
    table = table_of(run("filter", "info", name))
    assert (table["name"], table["capacity"], table["error rate"]) == (name, "5000", "0.001")
    assert table["estimated count"] == str(bloom.count())
    assert table["generation"] == str(bloom.generation)
    # The route is what an object took last, and the command line has an object of its own.
    expected = asdict(bloom.info()) | {"route": "", "ttl": None}
    assert json.loads(run("filter", "info", name, "--json").stdout) | {"route": ""} == expected


def test_create_says_what_it_takes(run, refuse, name, valkey):
    words = ("filter", "create", name, "--capacity", "50e3", "--window", "1h")
    done = run(*words)
    assert done.returncode == 0
    with BloomFilter.open(name, client=valkey) as made:
        assert (made.capacity, made.error_rate) == (50_000, 1e-6)
        assert made.window == timedelta(hours=1)
        assert made.add("kept")
        kb = made.num_bits / 8 / 1000
    said = f"{name}: 50000 items at 1e-06, {made.num_hashes} hash functions, {kb:.1f} kB of memory"
    assert done.stdout.decode().startswith(said)
    assert run(*words) == done, "it may be there already"
    refuse(2, "capacity: stored 50000, asked 60000", *words, "--capacity", "60e3")
    assert run("exists", name, "kept").returncode == 0


def test_a_filter_of_the_server_itself_is_opened_as_it_is(run, name):
    with PrivateServer(config=with_bloom()) as server:
        words = ("filter", "create", name, "--native", "--capacity", "50")
        assert run(*words, url=server.url).returncode == 0
        assert run("add", name, "a", url=server.url).stdout == b"1\n"
        found = [run("exists", name, item, url=server.url).returncode for item in ("a", "b")]
        assert found == [0, 1]
        assert run("filter", "clear", name, "--yes", url=server.url).returncode == 0
        assert run("exists", name, "a", url=server.url).returncode == 1
        assert run("filter", "delete", name, "--yes", url=server.url).returncode == 0


def test_top_tells_what_is_there_and_goes_on_where_one_is_broken(run, r, valkey):
    damages = {"a": ("num_hashes", 0), "b": ("capacity", 10**9), "c": ("state", "new")}
    assert run("filter", "top", "--once").stdout.split()[0] == b"FILTER"
    for name in (*damages, "gone", "100 % {odd}/name", "whole"):
        with BloomFilter(name, 1000, 0.01, client=valkey) as made:
            made.update(str(number) for number in range(500))
            made.claim("open", ttl=600, renew=False)
            made.claim("failed", max_attempts=1).abandon("why")
            info = made.info()
    for name, (field, value) in damages.items():
        r.hset(f"bloomlock:{{{name}}}:meta", field, value)
    r.delete("bloomlock:{gone}:bits")
    names = ["100 % {odd}/name", "a", "b", "c", "gone", "whole"]
    assert run("filter", "ls").stdout.decode().splitlines() == names
    with Lock("a {lock}", valkey):
        done = run("filter", "top")  # no terminal: once
        told = json.loads(run("filter", "top", "--json").stdout)
    assert done.returncode == 0
    text, locks = done.stdout.decode().split("\n\n")
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()[1:]]
    assert [row[0] for row in rows] == names
    assert [row[1] == "?" for row in rows] == [False, True, True, True, True, False]
    items, capacity, fill, bar, rate, errors, _, num_open, failed = rows[-1][1:]
    assert (int(items), int(capacity)) == (info.estimated_count, 1000)
    assert (fill, bar.count("█")) == (f"{info.estimated_count / 1000:.0%}", 5)
    assert (rate, num_open, failed) == ("-", "1", "1")
    assert float(errors) == pytest.approx(info.current_error_rate, rel=0.05)
    assert re.split(r"  +", locks.splitlines()[1].strip())[:3] == ["a {lock}", "1", "0"]
    assert [(lock["name"], lock["holders"]) for lock in told["locks"]] == [("a {lock}", 1)]
    assert done.stderr.count(b"has a damaged descriptor") == 3
    assert done.stderr.count(b"filter 'gone' has lost its bitmap") == 1
    assert done.stderr.count(b"\n") == 4
    (whole,) = [row for row in told["filters"] if row["name"] == "whole"]
    assert whole["estimated_count"] == int(items)
    assert (whole["claims"]["open"], whole["claims"]["failed_items"]) == (1, 1)
    for name in (*damages, "gone"):
        assert run("filter", "delete", "--yes", name).returncode == 0
    assert run("filter", "ls").stdout == b"100 % {odd}/name\nwhole\n"


def test_clear_empties_for_everybody(run, name, bloom, valkey):
    assert run("filter", "clear", "--yes", name) == (0, b"", b"")
    with BloomFilter.open(name, client=valkey) as other:
        assert (other.count(), other.capacity) == (0, 5000)
        assert other.generation != bloom.generation


@pytest.mark.parametrize("lost", ["", "bits", "meta"])
@pytest.mark.usefixtures("bloom")
def test_delete_also_what_is_broken(run, refuse, r, name, lost):
    if lost:
        assert r.delete(f"bloomlock:{{{name}}}:{lost}")
    assert run("filter", "delete", "--yes", name).returncode == 0
    assert not r.keys(f"*{name}*")
    refuse(2, f"there is no filter named '{name}'", "filter", "delete", "--yes", name)


@pytest.mark.parametrize("given", [b"", b"y\n" * 1000])
@pytest.mark.parametrize("command", ["clear", "delete"])
def test_nothing_is_asked_of_a_pipe(refuse, name, bloom, command, given):
    before = bloom.info()
    expected = f"{command.capitalize()} '{name}'? There is no terminal to ask at; give --yes"
    refuse(2, expected, "filter", command, name, given=given)
    assert bloom.info() == before


def test_the_plan_is_a_table_or_json(run):
    words = ("filter", "plan", "41e9", "--rate", "111200", "--server-memory", "64")
    table = table_of(run(*words))
    made = plan(41 * 10**9, 1e-6, items_per_s=111_200, server_bytes=64 * 2**30)
    assert (table["capacity"], table["num bits"]) == ("41000000000", str(made.num_bits))
    assert table["servers"] == str(made.servers) == table["servers for memory"]
    done = run("filter", "plan", "1e6", "--error-rate", "0.01", "--window", "7d", "--json")
    expected = plan(10**6, 0.01, window=604_800)
    assert json.loads(done.stdout) == asdict(expected) | {"servers": 1}
