"""`add`, `exists` and `discard`: exit statuses that a script can rely on; keys are not shown."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter
from scrapy_ext import EarlierFingerprinter, ScrapyRedisFingerprinter

SECRET = b"thirty-two bytes of a secret key"


def test_add_counts_the_new_ones_and_tells_whether_there_were_any(run, name):
    done = run("add", name, "a", "b", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"2\n", b"")
    done = run("add", name, "b", "c")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    done = run("add", name, "b", "c")
    assert (done.returncode, done.stdout) == (1, b"0\n")


def test_quiet_add(run, name):
    assert [run("add", "-q", name, "a") for _ in range(2)] == [(0, b"", b""), (1, b"", b"")]


def test_add_reads_lines_where_no_item_is_given(run, name):
    assert run("add", name, given=b"a\nb\na\n\xff\0\n").stdout == b"3\n"
    assert run("exists", name, given=b"b\n\xff\0").returncode == 0
    nothing = run("add", name)
    assert (nothing.returncode, nothing.stdout) == (1, b"0\n")


def test_items_are_bytes(run, name, valkey):
    run("add", name, os.fsdecode(b"\xff\xfe"), "é", "", "--", "-q")
    with BloomFilter.open(name, client=valkey) as bloom:
        assert bloom.exists_many([b"\xff\xfe", "é", "", "-q", "q"]) == [
            True,
            True,
            True,
            True,
            False,
        ]


def test_add_creates_with_the_given_parameters(run, name, valkey):
    run("add", name, "a", "--capacity", "777", "--error-rate", "0.01", "--strategy", "lua")
    with BloomFilter.open(name, client=valkey) as bloom:
        assert (bloom.capacity, bloom.error_rate) == (777, 0.01)


def test_a_filter_with_a_window(run, name, valkey):
    assert run("add", name, "a", "--window", "1h", "--slices", "6").returncode == 0
    with BloomFilter.open(name, client=valkey) as bloom:
        assert (bloom.window, bloom.slices) == (timedelta(hours=1), 6)
    assert run("add", "-q", name, "a").returncode == 1
    assert run("add", "-q", name, "b", "--window", "3600").returncode == 0


def test_the_defaults_are_a_million_at_one_in_a_million(run, name, valkey):
    run("add", name, "a")
    with BloomFilter.open(name, client=valkey) as bloom:
        assert (bloom.capacity, bloom.error_rate) == (1_000_000, 1e-6)


@pytest.mark.parametrize(
    ("items", "status"), [(["a"], 0), (["a", "b"], 0), (["a", "x"], 1), (["x"], 1), ([""], 1)]
)
def test_exists_tells_by_its_status(run, name, valkey, items, status):
    with BloomFilter(name, 1000, client=valkey) as bloom:
        bloom.update(["a", "b"])
        done = run("exists", name, *items)
        assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")
        assert bloom.count() == 2


def test_exists_writes_what_it_is_asked_for(run, name):
    run("add", name, "a", "b")
    text = b"x\na\ny\nb\nx\n\xff"
    assert run("exists", name, "--seen", given=text).stdout == b"a\nb\n"
    assert run("exists", name, "--new", given=text).stdout == b"x\ny\nx\n\xff\n"
    assert run("exists", name, "--new", "x", "a").stdout == b"x\n"
    assert run("exists", name).returncode == 0


def test_discard_counts_what_was_there_and_touches_nothing_else(run, name, valkey):
    run("add", name, "a", "b", "c", "d")
    done = run("discard", name, "a", "x", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")
    done = run("discard", name, "a", "x")
    assert (done.returncode, done.stdout) == (1, b"0\n")
    assert run("discard", name, "-q", "b").returncode == 0
    done = run("discard", name, given=b"c\nx\n")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    with BloomFilter.open(name, client=valkey) as bloom:
        assert bloom.exists_many(["a", "b", "c", "d"]) == [False, False, False, True]
    assert run("add", name, "a", "d").stdout == b"1\n"


def test_discard_takes_urls_of_requests(run, name, valkey):
    kinds = {
        "scrapy": fingerprint,
        "scrapy-redis": ScrapyRedisFingerprinter().fingerprint,
        "earlier": EarlierFingerprinter().fingerprint,
    }
    with BloomFilter(name, 1000, client=valkey) as bloom:
        for kind, take in kinds.items():
            own = [take(Request(f"https://example.org/?b=2&a={n}")) for n in range(3)]
            bloom.update(own)
            done = run("discard", name, "--urls", "--fingerprinter", kind,
                       "https://example.org/?a=1&b=2", "https://example.org/never")  # fmt: skip
            assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")
            assert bloom.exists_many(own) == [True, False, True]
    done = run("discard", name, "--urls", "no url")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"'no url' is no URL of a request" in done.stderr
    assert b"Traceback" not in done.stderr


# -- keys: from a file, never in the arguments, never shown ----------------------------------------


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(SECRET + b"\n")
    return str(path)


def test_a_key_file_makes_a_filter_and_opens_it(run, name, key_file, valkey):
    assert run("add", name, "a", "b", "--key-file", key_file).stdout == b"2\n"
    assert run("add", name, "a", "c", BLOOMLOCK_KEY_FILE=key_file).stdout == b"1\n"
    assert run("exists", name, "a", "--key-file", key_file).returncode == 0
    with BloomFilter.open(name, client=valkey, key=SECRET) as made:
        assert made.exists_many(["a", "b", "c", "d"]) == [True, True, True, False]
    shown = run("info", name, "--key-file", key_file)
    assert b"key                     secret\n" in shown.stdout
    listed = run("ls", "-l", BLOOMLOCK_KEY_FILE=key_file)
    assert listed.returncode == 0
    assert name.encode() in listed.stdout
    deduped = run("dedup", "--name", name, "--key-file", key_file, given=b"a\nd\n")
    assert deduped.stdout == b"d\n"
    assert run("clear", "-y", name, "--key-file", key_file).returncode == 0
    assert run("add", name, "a", "--key-file", key_file).stdout == b"1\n"
    assert run("delete", "-y", name).returncode == 0
    assert SECRET not in shown.stdout + shown.stderr + listed.stdout + listed.stderr


@pytest.mark.parametrize("command", ["add", "exists", "info", "clear"])
def test_without_the_key_or_with_another_there_is_one_sentence(
    run, name, key_file, tmp_path, command
):
    run("add", name, "a", "--key-file", key_file)
    (tmp_path / "other").write_bytes(b"another secret key")
    arguments = {"add": ["b"], "exists": ["a"], "info": [], "clear": ["-y"]}[command]
    for extra in ([], ["--key-file", str(tmp_path / "other")]):
        done = run(command, name, *arguments, *extra)
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1
        assert b"key: stored" in done.stderr
        assert b"another secret" not in done.stderr
    assert run("exists", name, "a", "--key-file", key_file).returncode == 0


def test_a_filter_without_a_key_is_read_whatever_key_there_is(run, name, key_file):
    run("add", name, "a")
    assert run("exists", name, "a", BLOOMLOCK_KEY_FILE=key_file).returncode == 0
    assert run("info", name, BLOOMLOCK_KEY_FILE=key_file).returncode == 0
    refused = run("add", name, "b", BLOOMLOCK_KEY_FILE=key_file)
    assert refused.returncode == 2
    assert b"key: stored none, asked a secret one" in refused.stderr


def test_a_random_key_needs_no_file(run, name):
    assert run("add", name, "a", "--random-key").stdout == b"1\n"
    assert run("add", name, "a").stdout == b"0\n"
    assert run("add", name, "a", "--random-key").stdout == b"0\n"
    assert b"key                     random, stored with the filter\n" in run("info", name).stdout
    assert run("dedup", "--random-key", given=b"a\na\nb\n", url=None).stdout == b"a\nb\n"
