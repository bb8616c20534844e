"""Bad input is one sentence on standard error, status 2, and nothing is written."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import threading

import pytest
import redis
from cli_process import COMMAND, environment

from bloomlock import BloomFilter
from bloomlock.server import PrivateServer

NOWHERE = "unix:///nowhere/at/all.sock"


def refuse(done, *parts: str) -> None:
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b"")
    assert message.startswith("bloomlock: ")
    assert message.count("\n") == 1
    assert message.endswith("\n")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--capacity", "0", "capacity must be a whole number of items, at least 1, not 0"),
        ("--capacity", "-5", "capacity must be a whole number of items, at least 1, not -5"),
        ("--capacity", "1.5", "capacity must be a whole number of items, at least 1, not '1.5'"),
        ("--capacity", "many", "capacity must be a whole number of items, at least 1, not 'many'"),
        ("--capacity", "9" * 30, "capacity must be at most"),
        ("--error-rate", "0", "error_rate must be a number from 1e-15"),
        ("--error-rate", "1", "error_rate must be a number from 1e-15"),
        ("--error-rate", "-0.1", "error_rate must be a number from 1e-15"),
        ("--error-rate", "nan", "error_rate must be a number from 1e-15"),
        ("--error-rate", "1 %", "error_rate must be a number from 1e-15"),
        ("--layout", "spiral", "layout must be 'classic' or 'blocked', not 'spiral'"),
        ("--optimize", "size", "optimize must be 'memory', 'balanced', 'speed' or None"),
        ("--num-hashes", "65", "num_hashes must be a whole number from 1 to 64 or None, not 65"),
        ("--strategy", "hope", "strategy must be one of 'atomic', 'lua', 'transaction'"),
        ("--on-full", "burst", "on_full must be 'warn' or 'raise' or 'grow', not 'burst'"),
        ("--on-lost", "weep", "on_lost must be 'raise' or 'recreate', not 'weep'"),
        ("--name", "", "name must be a text"),
        ("--name", "x" * 1025, "name must be a text"),
        ("--nonsense", "1", "--nonsense"),
    ],
)
def test_parameters_are_checked_before_anything_is_sent(run, option, value, part):
    # A server that is not there would be the complaint if it were asked first.
    done = run("dedup", "--name", "n", "--url", NOWHERE, option, value, given=b"a\n")
    refuse(done, part)


def test_files_are_checked_before_anything_is_sent(run, tmp_path):
    good = tmp_path / "good"
    good.write_bytes(b"a\n")
    missing = tmp_path / "missing"
    options = ("dedup", "--name", "n", "--url", NOWHERE, str(good))
    refuse(run(*options, str(missing)), f"cannot read {missing}: No such file or directory")
    refuse(run(*options, str(tmp_path)), f"cannot read {tmp_path}: it is a directory")
    refuse(run(*options, f"{good}/x"), f"cannot read {good}/x: Not a directory")


@pytest.mark.parametrize("command", [["dedup", "--name", "n"], ["add", "n"], ["info", "n"], ["ls"]])
def test_no_server_at_the_url(run, command):
    refuse(run(*command, "--url", NOWHERE), f"no Redis server answers at {NOWHERE}")


def test_no_server_at_the_port(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"redis://:secret@127.0.0.1:{taken.getsockname()[1]}/0"
        done = run("dedup", "--url", url, given=b"a\n")
    refuse(done, "no Redis server answers at redis://***@127.0.0.1:", "refused")


@pytest.mark.parametrize(
    "url", ["redis://:se/cret@{}", "redis://:se@cret@{}", "redis://{}?password=secret"]
)
@pytest.mark.parametrize("command", [["ls"], ["add", "n", "a"], ["lock", "n", "true"]])
def test_no_password_is_shown(run, url, command):
    done = run(command[0], "--url", url.format("127.0.0.1:1"), *command[1:])
    refuse(done)
    assert b"cret" not in done.stderr


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_something_else_at_the_port(run, reply):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        done = run("dedup", "--url", f"redis://127.0.0.1:{other.getsockname()[1]}", given=b"a\n")
    refuse(done, "no Redis server answers at redis://127.0.0.1:")


def test_a_server_that_is_silent_is_given_up(run):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run("ls", "--url", f"redis://127.0.0.1:{silent.getsockname()[1]}")
    refuse(done, "no Redis server answers at redis://127.0.0.1:", "imeout")


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://localhost", "--url must be a URL that starts with redis://"),
        ("localhost:6379", "--url must be a URL that starts with redis://"),
        # What stands in the place of the port may be a password that is cut by its own slash.
        ("redis://localhost:port", "must be the URL of a Redis server, not 'redis://***'"),
    ],
)
def test_urls_that_are_none(run, url, part):
    refuse(run("ls", "--url", url), part)


@pytest.mark.parametrize("variable", ["BLOOMLOCK_URL", "REDIS_URL"])
def test_urls_in_the_environment(run, variable):
    done = run("dedup", "--name", "n", given=b"a\n", url=None, **{variable: "nonsense"})
    refuse(done, f"{variable} must be a URL that starts with redis://")


@pytest.mark.parametrize("option", [("--strategy", "lua"), ("--on-lost", "recreate")])
def test_options_of_servers_where_there_is_none(run, option):
    refuse(run("dedup", *option, given=b"a\n"), f"{option[0]} is about a filter on a server")


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--capacity", "0", "capacity must be a whole number of items, at least 1, not 0"),
        ("--error-rate", "0", "error_rate must be a number from 1e-15"),
        ("--error-rate", "1 %", "error_rate must be a number from 1e-15"),
        ("--error-rate", "nan", "error_rate must be a number from 1e-15"),
        ("--layout", "spiral", "layout must be 'classic' or 'blocked', not 'spiral'"),
        ("--optimize", "size", "optimize must be 'memory', 'balanced', 'speed' or None"),
        ("--num-hashes", "65", "num_hashes must be a whole number from 1 to 64 or None, not 65"),
        ("--on-full", "burst", "on_full must be 'warn' or 'raise', not 'burst'"),
        ("--capacity", f"{10**13}", "but 4096 shards hold"),
    ],
)
def test_parameters_of_a_filter_in_the_process(run, tmp_path, option, value, part):
    file = tmp_path / "lines"
    file.write_bytes(b"a\n")
    refuse(run("dedup", option, value, given=b"a\n"), part)
    refuse(run("dedup", option, value, str(file)), part)


def test_a_filter_that_does_not_fit_into_the_process(start):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    process = start("dedup", "--capacity", "1000000000", preexec_fn=limit)
    output, error = process.communicate(b"a\n", 60)
    done = subprocess.CompletedProcess((), process.returncode, output, error)
    refuse(done, "a filter for 1000000000 lines does not fit into memory")


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (("--capacity", "2000"), "capacity: stored 1000, asked 2000"),
        (("--error-rate", "0.5"), "error_rate: stored 0.01, asked 0.5"),
    ],
)
def test_other_parameters_than_the_stored_ones(run, name, valkey, asked, part):
    with BloomFilter(name, 1000, 0.01, client=valkey) as bloom:
        refuse(run("dedup", "--name", name, *asked, given=b"a\n"), part)
        assert bloom.count() == 0


@pytest.mark.parametrize("part", ["meta", "bits"])
def test_a_key_of_another_type(run, name, valkey, part):
    with redis.Redis.from_url(valkey) as client:
        key = f"bloomlock:{{{name}}}:{part}"
        client.sadd(key, "something else")
        refuse(run("dedup", "--name", name, given=b"a\n"), "hold something that is no filter")
        refuse(run("exists", name, "a"), "hold something that is no filter")
        assert client.smembers(key) == {b"something else"}
        client.delete(key)


def test_a_newer_format(run, name, valkey):
    with BloomFilter(name, 1000, client=valkey), redis.Redis.from_url(valkey) as client:
        client.hset(f"bloomlock:{{{name}}}:meta", "format", "99")
        refuse(run("dedup", "--name", name, given=b"a\n"), "stored in format 99", "upgrade")


def test_a_bitmap_that_is_gone(run, name, valkey):
    with BloomFilter(name, 1000, client=valkey), redis.Redis.from_url(valkey) as client:
        client.delete(f"bloomlock:{{{name}}}:bits")
        done = run("dedup", "--name", name, "--capacity", "1000", given=b"a\n")
        refuse(done, "has lost its bitmap", "--on-lost recreate")
        done = run(
            *("dedup", "--name", name, "--capacity", "1000", "--on-lost", "recreate"), given=b"a\n"
        )
        assert (done.returncode, done.stdout) == (0, b"a\n")


def test_a_server_without_memory(run, name):
    with PrivateServer(config={"maxmemory": "3mb"}) as server:
        done = run("dedup", "--name", name, "--capacity", "50000000", url=server.url, given=b"a\n")
        refuse(done, "capacity is 50000000 at", "B free (maxmemory is 3.0 MiB)")


@pytest.mark.parametrize(
    ("redirection", "part"), [("<&-", "input is closed"), (">&-", "output is closed")]
)
def test_closed_ends(valkey, name, redirection, part):
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *COMMAND, "dedup", "--name", name],
        input=b"a\n",
        capture_output=True,
        check=False,
        timeout=60,
        env=environment(valkey, {}),
    )
    refuse(done, part)


def test_an_unknown_command(run):
    refuse(run("dedupe"), "No such command 'dedupe'. Did you mean 'dedup'?")
    refuse(run("filter", "unio"), "No such command 'unio'. Did you mean 'union'?")


def test_a_name_is_needed(run):
    refuse(run("info"), "Missing argument")
    refuse(run("delete"), "Missing argument")


def test_a_filter_that_does_not_fit_into_memory(run, name):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > 2**35:
        pytest.skip("no filter is larger than this machine's memory")
    for command in ("add", "load", "dedup"):
        arguments = [name, "a"] if command == "add" else ["--name", name]
        done = run(command, *arguments, "--capacity", str(total), given=b"a\n")
        assert (done.returncode, done.stdout) == (2, b"")
        expected = rf"bloomlock: capacity is {total} at .* takes .* has [\d.]+ \w+ free [^\n]+\n"
        assert re.fullmatch(expected.encode(), done.stderr)
    assert run("info", name).returncode == 2
