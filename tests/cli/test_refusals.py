"""Bad input is one sentence on standard error with status 2, and nothing is written or sent."""

from __future__ import annotations

import subprocess

import pytest
from cli_process import COMMAND, environment

from bloomlock import BloomFilter

NOWHERE = "unix:///nowhere/at/all.sock"
"""A server that would be the complaint, were it asked first."""
SECONDS = "is no number of seconds, or number with m, h, d or w"
WORDS = [
    *((f"dedup --capacity {n}", "is no whole number from 1 on") for n in ("0", "1.5", "x")),
    (f"dedup --name n --capacity {'9' * 30}", "capacity must be a whole number of items from 1 to"),
    *((f"dedup --name n --error-rate {p}", "range 0<x<1") for p in ("0", "1", "-0.1")),
    ("dedup --name n --error-rate 1%", "'1%' is not a valid float"),
    ("dedup --name n --error-rate 1e-20", "error_rate must be a number from 1e-15"),
    ("dedup --optimize size", "'size' is not one of 'memory', 'balanced', 'speed'"),
    ("dedup --name n --window soon", f"'soon' {SECONDS}"),
    ("dedup --nonsense", "--nonsense"),
    (f"dedup --name {'x' * 1025}", "name must be a text"),
    ("dedupe", "No such command 'dedupe'. Did you mean 'dedup'?"),
    ("filter impor", "No such command 'impor'. Did you mean 'import'?"),
    ("filter info", "Missing argument"),
    ("dedup --window 60", "--window needs --name"),
    ("dedup --native", "--native needs --name"),
    ("dedup --url unix:///nowhere", "--url needs --name"),
    ("dedup --capacity 1e13", "but 4096 shards hold"),
    ("dedup --name n {file} {folder}/none", "{folder}/none: No such file"),
    ("dedup --name n {file} {folder}", "{folder}: Is a directory"),
    ("dedup --name n {file} {file}/x", "{file}/x: Not a directory"),
    ("filter create n --key-file {folder}/none", "/none: No such file"),
    ("filter create n --key-file {file}", "key must be 16 to 64 bytes"),
    ("claims drop n", "give ITEMs, or --all"),
    ("claims drop n a --all", "give ITEMs, or --all"),
    ("filter plan many", "'many' is no whole number from 1 on, such as 50e6"),
    ("filter plan 5 --rate 0", "'--rate': 0.0 is not in the range"),
    ("filter plan 1e13", "needs about 2^48"),
    ("filter top --interval x", SECONDS),
    ("lock n", "Missing argument 'COMMAND...'"),
    ("lock n --", "Missing argument 'COMMAND...'"),
    ("lock n -n -- true", "options stand before the names, and '-n' does not"),
    ("lock --lease 0 n true", "ttl must be"),
    *((f"lock --lease {value} n true", f"'--lease': '{value}' {SECONDS}") for value in ("-1", "x")),
    *((f"lock --wait {value} n true", f"'{value}' {SECONDS}") for value in ("nan", "inf")),
    ("lock -E 256 n true", "256 is not in the range 0<=x<=255"),
    ("once n k", "Missing argument 'COMMAND...'"),
    ("once n", "Missing argument 'KEY'"),
    ("scrapy-import", "KEY|FILE"),
    ("scrapy-import {folder}/none n", "/none: No such file"),
    ("scrapy-import {file}", "NAME is missing"),
    ("scrapy-import k --from host:6379", "--from must be a URL that starts with"),
]


@pytest.mark.parametrize(("words", "part"), WORDS)
def test_words_that_are_wrong(refuse, tmp_path, words, part):
    file, key = tmp_path / "file", tmp_path / "key"
    file.write_bytes(b"<html>\n")
    key.write_bytes(b"thirty-two bytes of a secret key\n")
    places = {"file": file, "key": key, "folder": tmp_path}
    arguments = [word.format(**places) for word in words.split()]
    refuse(2, part.format(**places), *arguments, given=b"a\n", url=NOWHERE)


EXISTING = ["add n a", "exists n a", "discard n a", "filter info n", "filter clear -y n",
            "once n k true", "claims ls n", "claims retry n -a", "filter export n x",
            "filter copy n m"]  # fmt: skip
EVERYTHING = [*EXISTING, "dedup --name n", "filter create n", "filter ls", "filter top",
              "filter delete -y n", "lock n true", "scrapy-import k"]  # fmt: skip


@pytest.mark.parametrize("words", EVERYTHING)
def test_a_server_that_does_not_answer(refuse, words):
    refuse(2, f"no Redis server answers at {NOWHERE}", *words.split(), given=b"a\n", url=NOWHERE)


@pytest.mark.parametrize("words", [*EXISTING, "filter delete -y n"])
def test_a_filter_that_is_not_there(refuse, name, words):
    arguments = [name if word == "n" else word for word in words.split()]
    refuse(2, f"there is no filter named '{name}'", *arguments)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://localhost", "the server must be a URL that starts with redis://"),
        ("localhost:6379", "the server must be a URL that starts with redis://"),
        # What stands in the place of the port may be a password that is cut by its own slash.
        ("redis://localhost:port", "must be the URL of a Redis server, not 'redis://***'"),
        ("redis://:se/cret@127.0.0.1:1", ""),
        ("redis://127.0.0.1:1?password=secret", "no Redis server answers at redis://127.0.0.1:"),
    ],
)
def test_urls_that_are_none_and_no_password_shown(run, refuse, url, part):
    for words in (("filter", "ls", "--url", url), ("lock", "--url", url, "n", "true")):
        refuse(2, part, *words)
        assert b"cret" not in run(*words).stderr


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (("--capacity", "2000"), "capacity: stored 1000, asked 2000"),
        (("--optimize", "speed"), "optimize: stored"),
        (("--error-rate", "0.5"), "error_rate: stored 0.01, asked 0.5"),
        (("--window", "60"), "window: stored"),
    ],
)
def test_other_parameters_than_the_stored_ones(refuse, name, valkey, asked, part):
    fits = ("--capacity", "1000", "--error-rate", "0.01")
    with BloomFilter(name, 1000, 0.01, client=valkey) as bloom:
        refuse(2, part, "dedup", "--name", name, *asked, given=b"a\n")
        refuse(2, part, "filter", "create", name, *fits, *asked)
        assert bloom.count() == 0


@pytest.mark.parametrize(
    ("words", "redirection", "part"),
    [
        ("dedup --name NAME", "<&-", b"input is closed"),
        ("dedup --name NAME", ">&-", b"output is closed"),
        ("filter import NAME -", "<&-", b"input is closed"),
        ("filter export NAME -", ">&-", b"output is closed"),
        ("filter ls", ">&-", b""),
        ("filter top --once", ">&-", b""),
    ],
)
def test_closed_ends(valkey, name, words, redirection, part):
    BloomFilter(name, 1000, client=valkey).close()
    command = [*COMMAND, *words.replace("NAME", name).split()]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command],
        input=b"a\n",
        capture_output=True,
        check=False,
        env=environment(valkey, {}),
    )
    assert (done.stdout, done.stderr.count(b"\n")) == (b"", bool(part))
    assert part in done.stderr
    assert done.returncode == (2 if part else 0)
