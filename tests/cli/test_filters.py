"""`info`, `ls`, `clear`, `delete`, `plan` and the names and lives of filters."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest
from servers import with_bloom

from bloomlock import BloomFilter, plan
from bloomlock.catalog import list_filters
from bloomlock.server import PrivateServer


@pytest.fixture
def bloom(r, valkey, name):
    with BloomFilter(name, 5000, 0.001, client=valkey) as made:
        made.update(str(number) for number in range(1000))
        yield made


def table_of(done):
    assert (done.returncode, done.stderr) == (0, b"")
    return dict(re.split(r"  +", line) for line in done.stdout.decode().splitlines())


def test_info_is_a_table_or_json(run, name, bloom):
    table = table_of(run("info", name))
    assert table["name"] == name
    assert table["capacity"] == "5000"
    assert table["items, estimated"] == str(bloom.count())
    assert table["error rate at capacity"] == "0.001"
    assert table["hash functions"] == str(bloom.num_hashes)
    assert table["generation"] == str(bloom.generation)
    # The route is what an object took last, and the command line has an object of its own.
    expected = asdict(bloom.info()) | {"route": ""}
    assert json.loads(run("info", name, "--json").stdout) | {"route": ""} == expected


def test_a_filter_of_the_server_itself_is_opened_as_it_is(run, name):
    with PrivateServer(config=with_bloom()) as server:
        made = run("add", name, "a", "--strategy", "native", "--capacity", "50", url=server.url)
        assert made.stdout == b"1\n"
        assert json.loads(run("info", name, "--json", url=server.url).stdout)["name"] == name
        found = [run("exists", name, item, url=server.url).returncode for item in ("a", "b")]
        assert found == [0, 1]
        assert run("clear", name, "--yes", url=server.url).returncode == 0
        assert run("exists", name, "a", url=server.url).returncode == 1
        assert run("delete", name, "--yes", url=server.url).returncode == 0


def test_ls_tells_what_is_there_and_goes_on_where_one_is_broken(run, r, valkey):
    damages = {"a": ("num_hashes", 0), "b": ("capacity", 10**9), "c": ("state", "new")}
    assert run("ls", "-l").stdout.split()[-1] == b"NAME"
    for name in (*damages, "gone", "100 % {odd}/name", "whole"):
        with BloomFilter(name, 1000, 0.01, client=valkey) as made:
            made.update(str(number) for number in range(500))
            info = made.info()
    for name, (field, value) in damages.items():
        r.hset(f"bloomlock:{{{name}}}:meta", field, value)
    r.delete("bloomlock:{gone}:bits")
    names = ["100 % {odd}/name", "a", "b", "c", "gone", "whole"]
    assert run("ls").stdout.decode().splitlines() == names
    done = run("ls", "-l")
    assert done.returncode == 0
    rows = [re.split(r"  +", line.strip()) for line in done.stdout.decode().splitlines()[1:]]
    assert [row[-1] for row in rows] == names
    assert [row[0] == "?" for row in rows] == [False, True, True, True, True, False]
    items, capacity, fill, rate = rows[-1][:4]
    assert (int(items), int(capacity)) == (info.estimated_count, 1000)
    assert fill == f"{info.estimated_count / 1000:.0%}"
    assert float(rate) == pytest.approx(info.current_error_rate, rel=0.05)
    assert done.stderr.count(b"has a damaged descriptor") == 3
    assert done.stderr.count(b"filter 'gone' has lost its bitmap") == 1
    assert done.stderr.count(b"\n") == 4
    assert run("delete", "--yes", *damages, "gone").returncode == 0
    assert run("ls").stdout == b"100 % {odd}/name\nwhole\n"


def test_clear_empties_for_everybody(run, name, bloom, valkey):
    assert run("clear", "--yes", name) == (0, b"", b"")
    with BloomFilter.open(name, client=valkey) as anew:
        assert (anew.count(), anew.capacity) == (0, 5000)
        assert anew.generation != bloom.generation


@pytest.mark.parametrize("lost", ["", "bits", "meta"])
@pytest.mark.usefixtures("bloom")
def test_delete_also_what_is_broken(run, refuse, r, name, lost):
    if lost:
        assert r.delete(f"bloomlock:{{{name}}}:{lost}")
    assert run("delete", "--yes", name).returncode == 0
    assert not r.keys(f"*{name}*")
    refuse(2, f"there is no filter named '{name}'", "delete", "--yes", name)


def test_delete_goes_on_after_one_that_is_missing(refuse, name, valkey):
    for which in "ab":
        BloomFilter(name + which, 1000, client=valkey).close()
    refuse(2, name, "delete", "--yes", name + "a", name, name + "b")
    assert not [found for found in list_filters(client=valkey) if found.startswith(name)]


@pytest.mark.parametrize("given", [b"", b"n\n", b"y\n" * 1000])
@pytest.mark.parametrize("command", ["clear", "delete"])
def test_nothing_is_asked_of_a_pipe(refuse, name, bloom, command, given):
    before = bloom.info()
    expected = f"{command.capitalize()} '{name}'? There is no terminal to ask at; give --yes"
    refuse(2, expected, command, name, given=given)
    assert bloom.info() == before


def test_expiry_and_rename_work(run, refuse, name, bloom, r):
    """Both leave the command line; the promises are those of the library."""
    assert run("filter", "expire", name, "2h").returncode == 0
    assert 3600 < float(run("filter", "ttl", name).stdout) <= 7200
    assert run("filter", "persist", name).returncode == 0
    assert run("filter", "ttl", name).returncode == 1
    assert run("filter", "rename", name, f"{name} 2").returncode == 0
    assert run("exists", f"{name} 2", "0").returncode == 0
    refuse(2, f"there is no filter named '{name}'", "info", name)


# -- plan ----------------------------------------------------------------------------------------


def test_the_plan_is_a_table_or_json(run):
    words = ("--items", "41e9", "--rate", "111200", "--server-memory", "64")
    table = table_of(run("plan", *words))
    made = plan(41 * 10**9, 1e-6, items_per_s=111_200, server_bytes=64 * 2**30)
    assert table["items"] == "41000000000"
    assert table["bits"].split()[0] == str(made.num_bits)
    assert table["servers"] == str(made.servers) == table["servers for the memory"]
    assert table_of(run("plan", "--like", "irlbot", "--server-memory", "64")) == table
    found = json.loads(run("plan", "--items", "1e6", "--error-rate", "0.01", "--json").stdout)
    assert found["num_bits"] == plan(10**6, 0.01).num_bits
    assert (found["servers"], found["servers_for_rate"]) == (1, None)


def test_the_plan_of_a_time_window(run):
    table = table_of(run("plan", "--items", "200e6", "--window", "7d", "--slices", "6"))
    assert table["window"] == "7 days, 0:00:00 in 6 slices"
    made = plan(200 * 10**6, 1e-6, window=604_800, slices=6)
    assert table["bits"].split()[0] == str(made.num_bits)
