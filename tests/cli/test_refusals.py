"""Bad input is one sentence on standard error with status 2, and nothing is written or sent."""

from __future__ import annotations

import socket
import subprocess
import threading

import pytest
import redis
from cli_process import COMMAND, environment

from bloomlock import BloomFilter
from bloomlock.server import PrivateServer

NOWHERE = "unix:///nowhere/at/all.sock"
"""A server that would be the complaint, were it asked first."""
CAPACITY = "capacity must be a whole number of items, at least 1, not "
RATE = "error_rate must be a number from 1e-15"
CREATION = [
    *(("--capacity", value, CAPACITY) for value in ("0", "-5", "1.5", "many")),
    ("--capacity", "9" * 30, "capacity must be at most"),
    *(("--error-rate", value, RATE) for value in ("0", "1", "-0.1", "nan", "1 %")),
    ("--optimize", "size", "optimize must be 'memory', 'balanced', 'speed' or None"),
    ("--num-hashes", "65", "num_hashes must be a whole number from 1 to 64 or None, not 65"),
    ("--on-full", "burst", "on_full must be 'warn' or 'raise'"),
    ("--nonsense", "1", "--nonsense"),
]
ON_SERVERS = [
    ("--strategy", "hope", "strategy must be one of 'atomic', 'lua', 'transaction'"),
    ("--on-lost", "weep", "on_lost must be 'raise' or 'recreate', not 'weep'"),
    ("--window", "soon", "window must be a timedelta or seconds"),
    ("--name", "", "name must be a text"),
    ("--name", "x" * 1025, "name must be a text"),
]
SECONDS = "it must be a number of seconds, at least 0"
WORDS = [
    ("dedupe", 2, "No such command 'dedupe'. Did you mean 'dedup'?"),
    ("filter impor", 2, "No such command 'impor'. Did you mean 'import'?"),
    ("info", 2, "Missing argument"),
    ("delete", 2, "Missing argument"),
    ("dedup --strategy lua", 2, "--strategy is about a filter on a server"),
    ("dedup --on-lost recreate", 2, "--on-lost is about a filter on a server"),
    ("dedup --window 60", 2, "need --name"),
    ("dedup --capacity 10000000000000", 2, "but 4096 shards hold"),
    ("dedup --name n {file} {folder}/none", 2, "cannot read {folder}/none: No such file"),
    ("dedup --name n {file} {folder}", 2, "cannot read {folder}: it is a directory"),
    ("dedup --name n {file} {file}/x", 2, "cannot read {file}/x: Not a directory"),
    ("load", 2, "--name"),
    ("load --name n {folder}/none", 2, "cannot read {folder}/none: No such file"),
    ("load --name n --capacity 0", 2, CAPACITY),
    ("add n a --key-file {folder}/none", 2, "cannot read the key file"),
    ("add n a --key-file {file}", 2, "key must be 16 to 64 bytes"),
    ("add n a --key-file {key} --random-key", 2, "exclude each other"),
    ("claims drop n", 2, "give ITEMs, or --all"),
    ("claims drop n a --all", 2, "give ITEMs, or --all"),
    ("filter import n {folder}/none", 2, "{folder}/none"),
    ("filter import -n n {file}", 2, "{file}"),
    ("plan", 2, "give --items, or --like a known crawl"),
    ("plan --items many", 2, "--items must be a whole number from 1 on, such as 41e9, not many"),
    ("plan --items 1.5", 2, "--items must be a whole number"),
    ("plan --like mine", 2, "--like must be irlbot, not mine"),
    ("plan --items 5 --rate 0", 2, "--rate must be a number greater than 0, not 0.0"),
    ("plan --items 5 --server-memory x", 2, "--server-memory must be a number"),
    ("plan --items 1e13", 2, "needs about 2^48"),
    ("plan --items 5 --error-rate 7", 2, RATE),
    ("plan --items 5 --window soon", 2, "window must be a timedelta or seconds"),
    ("plan --items 5 --slices 6", 2, "slices must be None without window="),
    ("lock n", 2, "Missing argument 'COMMAND...'"),
    ("lock n --", 2, "Missing argument 'COMMAND...'"),
    ("lock", 2, "Missing argument 'NAME'"),
    ("lock n --nonsense -- true", 2, "--nonsense"),
    ("lock --ttl 0 n true", 2, "ttl must be"),
    *((f"lock --ttl {value} n true", 2, f"--ttl': {SECONDS}") for value in ("-1", "long")),
    *((f"lock --timeout {value} n true", 2, f"--timeout': {SECONDS}") for value in ("nan", "inf")),
    ("lock --grace -0.5 n true", 2, f"--grace': {SECONDS}"),
    ("lock -E 256 n true", 2, "256"),
    ("lock -E no n true", 2, "'no'"),
    ("lock -s --fair n true", 2, "--fair and --shared do not go together"),
    ("lock -n -w 3 n true", 2, "--nonblock and --timeout do not go together"),
    ("once n k", 2, "Missing argument 'COMMAND...'"),
    ("once n", 2, "Missing argument 'KEY'"),
    ("once --ttl 0 n k true", 2, "--ttl must be above 0 seconds"),
    ("once --wait -1 n k true", 2, f"--wait': {SECONDS}"),
    ("once --max-attempts 0 n k true", 2, "'--max-attempts': 0 is not in the range"),
    ("once --done-exit-code 256 n k true", 2, "256"),
    ("once --strategy lock n k true", 2, "--strategy must be atomic or lua for claims"),
    ("migrate-scrapy", 2, "KEY|FILE"),
    ("migrate-scrapy {folder}/none --name n", 2, "/none: No such file"),
    ("migrate-scrapy {file}", 2, "--name is missing"),
    ("migrate-scrapy k --from host:6379", 2, "--from must be a URL that starts with"),
    ("migrate-scrapy k --visited shop", 2, "--visited must be a URL, not 'shop'"),
    # A command that is not there is found out before a server is asked.
    *(
        (f"{words} {command}", status, f"cannot run '{command}': {reason}")
        for words in ("lock n", "once n k")
        for command, status, reason in (
            ("no-such-command", 127, "command not found"),
            ("./no/such", 127, "there is no such file"),
            ("{file}", 126, "permission denied"),
            ("{folder}", 126, "it is a directory"),
        )
    ),
]


@pytest.mark.parametrize(("option", "value", "part"), [*CREATION, *ON_SERVERS])
def test_parameters_are_checked_before_anything_is_sent(refuse, option, value, part):
    refuse(2, part, "dedup", "--name", "n", option, value, given=b"a\n", url=NOWHERE)


@pytest.mark.parametrize(("option", "value", "part"), CREATION)
def test_parameters_of_a_filter_in_the_process(refuse, option, value, part):
    refuse(2, part, "dedup", option, value, given=b"a\n", url=None)


@pytest.mark.parametrize(("words", "status", "part"), WORDS)
def test_words_that_are_wrong(refuse, tmp_path, words, status, part):
    file, key = tmp_path / "file", tmp_path / "key"
    file.write_bytes(b"<html>\n")
    key.write_bytes(b"thirty-two bytes of a secret key\n")
    places = {"file": file, "key": key, "folder": tmp_path}
    arguments = [word.format(**places) for word in words.split()]
    refuse(status, part.format(**places), *arguments, given=b"a\n", url=NOWHERE)


EVERYTHING = ["dedup --name n", "load --name n", "add n a", "exists n a", "discard n a", "info n",
              "ls", "clear -y n", "delete -y n", "lock n true", "once n k true", "claims ls n",
              "filter export n x", "filter copy n m", "migrate-scrapy k"]  # fmt: skip


@pytest.mark.parametrize("words", EVERYTHING)
def test_a_server_that_does_not_answer(refuse, words):
    refuse(2, f"no Redis server answers at {NOWHERE}", *words.split(), given=b"a\n", url=NOWHERE)


@pytest.mark.parametrize(
    "words", ["info n", "exists n a", "discard n a", "clear -y n", "delete -y n", "claims ls n",
              "claims expired n", "filter export n x", "filter copy n m"]
)  # fmt: skip
def test_a_filter_that_is_not_there(refuse, name, words):
    arguments = [name if word == "n" else word for word in words.split()]
    refuse(2, f"there is no filter named '{name}'", *arguments)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://localhost", "--url must be a URL that starts with redis://"),
        ("localhost:6379", "--url must be a URL that starts with redis://"),
        # What stands in the place of the port may be a password that is cut by its own slash.
        ("redis://localhost:port", "must be the URL of a Redis server, not 'redis://***'"),
        ("redis://:se/cret@127.0.0.1:1", ""),
        ("redis://:se@cret@127.0.0.1:1", "no Redis server answers at redis://***@127.0.0.1:"),
        ("redis://127.0.0.1:1?password=secret", "no Redis server answers at redis://127.0.0.1:"),
    ],
)
@pytest.mark.parametrize("words", [["ls"], ["lock", "n", "true"]])
def test_urls_that_are_none_and_no_password_shown(run, refuse, words, url, part):
    command = (words[0], "--url", url, *words[1:])
    refuse(2, part, *command)
    assert b"cret" not in run(*command).stderr


@pytest.mark.parametrize("variable", ["BLOOMLOCK_URL", "REDIS_URL"])
def test_urls_in_the_environment(refuse, variable):
    part = f"{variable} must be a URL that starts with redis://"
    refuse(2, part, "dedup", "--name", "n", url=None, **{variable: "nonsense"})


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_something_else_at_the_port(refuse, reply):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        url = f"redis://127.0.0.1:{other.getsockname()[1]}"
        refuse(2, "no Redis server answers at redis://127.0.0.1:", "ls", "--url", url)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (("--capacity", "2000"), "capacity: stored 1000, asked 2000"),
        (("--error-rate", "0.5"), "error_rate: stored 0.01, asked 0.5"),
        (("--num-hashes", "8"), "num_hashes: stored 5, asked 8"),
        (("--optimize", "speed"), "optimize: stored 5 hash functions, asked 2 by 'speed'"),
        (("--random-key",), "key: stored none"),
        (("--window", "60"), "window: stored"),
    ],
)
def test_other_parameters_than_the_stored_ones(refuse, name, valkey, asked, part):
    with BloomFilter(name, 1000, 0.01, client=valkey, num_hashes=5) as bloom:
        refuse(2, part, "dedup", "--name", name, *asked, given=b"a\n")
        refuse(2, part, "add", name, "a", *asked)
        assert bloom.count() == 0


@pytest.mark.parametrize("part", ["meta", "bits"])
@pytest.mark.parametrize(
    "words", ["dedup --name n", "exists n a", "info n", "clear -y n", "delete -y n"]
)
def test_a_key_of_another_type_is_left_alone(refuse, r, name, words, part):
    key = f"bloomlock:{{{name}}}:{part}"
    r.rpush(key, "something else")
    arguments = [name if word == "n" else word for word in words.split()]
    refuse(2, "hold something that is no filter", *arguments, given=b"a\n")
    assert r.lrange(key, 0, -1) == [b"something else"]


def test_a_newer_format(refuse, name, valkey, r):
    BloomFilter(name, 1000, client=valkey).close()
    r.hset(f"bloomlock:{{{name}}}:meta", "format", "99")
    refuse(2, "stored in format 99", "dedup", "--name", name, given=b"a\n")


def test_a_bitmap_that_is_gone(run, refuse, name, valkey, r):
    BloomFilter(name, 1000, client=valkey).close()
    r.delete(f"bloomlock:{{{name}}}:bits")
    words = ("dedup", "--name", name, "--capacity", "1000")
    refuse(2, "has lost its bitmap", *words, given=b"a\n")
    assert run(*words, "--on-lost", "recreate", given=b"a\n")[:2] == (0, b"a\n")


@pytest.mark.parametrize("words", ["dedup --name n", "add n a", "load --name n"])
def test_a_filter_that_does_not_fit_into_the_servers_memory(refuse, words):
    with PrivateServer(config={"maxmemory": "3mb"}) as server:
        arguments = (*words.split(), "--capacity", "50000000")
        refuse(2, "(maxmemory is 3.0 MiB)", *arguments, url=server.url, given=b"a\n")
        with redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("redirection", "part"), [("<&-", b"input is closed"), (">&-", b"output is closed")]
)
def test_closed_ends(valkey, name, redirection, part):
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *COMMAND, "dedup", "--name", name],
        input=b"a\n",
        capture_output=True,
        check=False,
        env=environment(valkey, {}),
    )
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert part in done.stderr
