"""`bloomlock info`, `ls`, `clear` and `delete`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest
import redis
from servers import with_bloom

from bloomlock import BloomFilter, list_filters
from bloomlock.server import PrivateServer


@pytest.fixture
def bloom(valkey, name):
    with BloomFilter(name, 5000, 0.001, client=valkey) as made:
        made.update(str(number) for number in range(1000))
        yield made


def test_info_is_a_table(run, name, bloom):
    done = run("info", name)
    assert (done.returncode, done.stderr) == (0, b"")
    table = dict(re.split(r"  +", line) for line in done.stdout.decode().splitlines())
    assert table["name"] == name
    assert table["capacity"] == "5000"
    assert table["items, estimated"] == str(bloom.count())
    assert table["error rate at capacity"] == "0.001"
    assert table["hash functions"] == str(bloom.num_hashes)
    assert table["generation"] == str(bloom.generation)


def test_info_as_json(run, name, bloom):
    # The route is what an object took last, and the command line has an object of its own.
    expected = asdict(bloom.info()) | {"route": ""}
    assert json.loads(run("info", name, "--json").stdout) == expected


def test_a_filter_of_the_server_itself_is_opened_as_it_is(run, name):
    with PrivateServer(config=with_bloom()) as server:
        made = run("add", name, "a", "--strategy", "native", "--capacity", "50", url=server.url)
        assert made.stdout == b"1\n"
        assert json.loads(run("info", name, "--json", url=server.url).stdout)["layout"] == "native"
        found = [run("exists", name, item, url=server.url).returncode for item in ("a", "b")]
        assert found == [0, 1]
        assert run("clear", name, "--yes", url=server.url).returncode == 0
        assert run("exists", name, "a", url=server.url).returncode == 1
        assert run("delete", name, "--yes", url=server.url).returncode == 0


@pytest.mark.usefixtures("bloom")
def test_ls_lists_names(run, name):
    done = run("ls")
    assert done.returncode == 0
    assert name in done.stdout.decode().splitlines()


def test_ls_long_tells_more_and_goes_on_where_one_is_broken(run):
    with PrivateServer() as server, redis.Redis.from_url(server.url) as client:
        assert run("ls", "-l", url=server.url).stdout.split() == [
            b"ITEMS", b"CAPACITY", b"FILL", b"ERROR", b"RATE", b"MEMORY", b"NAME",
        ]  # fmt: skip
        for name in ("whole", "a broken one", "100 % {odd}/name"):
            with BloomFilter(name, 1000, client=client) as bloom:
                bloom.add("a")
        client.delete("bloomlock:{a broken one}:bits")
        done = run("ls", "-l", url=server.url)
        assert done.returncode == 0
        rows = [re.split(r"  +", line.strip()) for line in done.stdout.decode().splitlines()[1:]]
        assert [row[-1] for row in rows] == ["100 % {odd}/name", "a broken one", "whole"]
        assert rows[1][:-1] == ["?"] * 5
        assert rows[2][:3] == ["1", "1000", "0%"]
        assert done.stderr.startswith(b"bloomlock: filter 'a broken one' has lost its bitmap")
        assert run("ls", url=server.url).stdout == b"100 % {odd}/name\na broken one\nwhole\n"


def test_a_damaged_descriptor_is_one_line_of_ls_and_can_be_deleted(run):
    damages = {
        "a": ("num_hashes", 0),
        "b": ("capacity", 10**9),
        "c": ("state", "new"),
        "d": ("shards", "9" * 99),
    }
    with PrivateServer() as server, redis.Redis.from_url(server.url) as client:
        for name, (field, value) in damages.items():
            BloomFilter(name, 1000, client=client, shards=2).add("a")
            client.hset(f"bloomlock:{{{name}}}:meta", field, value)
        BloomFilter("whole", 1000, client=client).add("a")
        done = run("ls", "-l", url=server.url)
        assert done.returncode == 0
        rows = [line.split() for line in done.stdout.decode().splitlines()[1:]]
        assert [row[-1] for row in rows] == ["a", "b", "c", "d", "whole"]
        assert [row[0] for row in rows] == ["?", "?", "?", "?", "1"]
        assert done.stderr.count(b"has a damaged descriptor") == done.stderr.count(b"\n") == 4
        assert run("delete", "--yes", "--yes", *damages, url=server.url).returncode == 0
        assert run("ls", url=server.url).stdout == b"whole\n"
        assert client.dbsize() == 2


def test_clear_empties_for_everybody(run, name, bloom, valkey):
    done = run("clear", "--yes", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    with BloomFilter.open(name, client=valkey) as anew:
        assert (anew.count(), anew.capacity) == (0, 5000)
        assert anew.generation != bloom.generation


@pytest.mark.parametrize("lost", ["", "bits", "meta"])
@pytest.mark.usefixtures("bloom")
def test_delete_also_what_is_broken(run, name, valkey, lost):
    with redis.Redis.from_url(valkey) as client:
        if lost:
            assert client.delete(f"bloomlock:{{{name}}}:{lost}")
        assert run("delete", "--yes", name).returncode == 0
        assert not client.keys(f"*{name}*")
    again = run("delete", "--yes", name)
    assert again.returncode == 2
    assert again.stderr == f"bloomlock: there is no filter named '{name}'\n".encode()


def test_delete_goes_on_after_one_that_is_missing(run, name, valkey):
    for which in "ab":
        BloomFilter(name + which, 1000, client=valkey).close()
    done = run("delete", "--yes", name + "a", name, name + "b")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert not [found for found in list_filters(client=valkey) if found.startswith(name)]


@pytest.mark.parametrize("command", ["info", "clear", "delete"])
def test_what_is_no_filter_is_left_alone(run, name, valkey, command):
    with redis.Redis.from_url(valkey) as client:
        key = f"bloomlock:{{{name}}}:bits"
        client.rpush(key, "something else")
        done = run(command, *(["--yes"] if command != "info" else []), name)
        assert (done.returncode, done.stdout) == (2, b"")
        assert re.fullmatch(
            rb"bloomlock: [^\n]+ hold something that is no filter[^\n]+\n", done.stderr
        )
        assert client.lrange(key, 0, -1) == [b"something else"]
        client.delete(key)


def test_ls_long_tells_fill_and_rate_as_they_are(run):
    with PrivateServer() as server:
        with BloomFilter("half", 1000, 0.01, client=server.url) as bloom:
            bloom.update(str(number) for number in range(500))
            info = bloom.info()
        items, capacity, fill, rate, *_ = (
            run("ls", "-l", url=server.url).stdout.splitlines()[1].split()
        )
    assert (int(items), int(capacity)) == (info.estimated_count, 1000)
    assert fill.decode() == f"{info.estimated_count / 1000:.0%}"
    assert float(rate) == pytest.approx(info.current_error_rate, rel=0.05)
    assert float(rate) < 0.002


@pytest.mark.parametrize("given", [b"", b"n\n", b"y\n" * 1000])
@pytest.mark.parametrize("command", ["clear", "delete"])
def test_nothing_is_asked_of_a_pipe(run, name, bloom, command, given):
    bloom.add("a")
    before = bloom.info()
    done = run(command, name, given=given)
    assert (done.returncode, done.stdout) == (2, b"")
    verb = command.capitalize()
    expected = f"bloomlock: {verb} '{name}'? There is no terminal to ask at; give --yes\n"
    assert done.stderr.decode() == expected
    assert bloom.info() == before
