"""`bloomlock add` and `bloomlock exists`: exit statuses that a script can rely on."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from cli_process import PATIENCE, answer, send
from scrapy import Request
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter
from scrapy_ext import EarlierFingerprinter, ScrapyRedisFingerprinter


def test_add_counts_the_new_ones_and_tells_whether_there_were_any(run, name):
    done = run("add", name, "a", "b", "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"2\n", b"")
    done = run("add", name, "b", "c")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    done = run("add", name, "b", "c")
    assert (done.returncode, done.stdout) == (1, b"0\n")


def test_quiet_add(run, name):
    assert (run("add", "-q", name, "a").returncode, run("add", "-q", name, "a").returncode) == (
        0,
        1,
    )
    assert run("add", "-q", name, "b").stdout == b""


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
    for options in (["--window", "60"], ["--slices", "14"]):
        refused = run("add", name, "c", *options)
        assert refused.returncode == 2
        assert b"window" in refused.stderr or b"slices" in refused.stderr
    refused = run("add", f"{name}2", "a", "--window", "0")
    assert refused.returncode == 2
    assert b"window must be a timedelta or seconds" in refused.stderr
    assert b"need --name" in run("dedup", "--window", "60", given=b"a\n").stderr


def test_the_hash_functions_are_those_of_the_filter_that_exists(run, name, valkey):
    with BloomFilter(name, 5000, 1e-3, client=valkey, num_hashes=6) as bloom:
        assert run("add", name, "a").returncode == 0
        assert run("add", name, "b", "--num-hashes", "6").returncode == 0
        assert run("add", name, "c", "--optimize", "memory").returncode == 2
        assert bloom.exists_many(["a", "b", "c"]) == [True, True, False]
    done = run("add", name, "c", "--num-hashes", "8")
    assert b"num_hashes: stored 6, asked 8" in done.stderr
    done = run("add", name, "c", "--optimize", "speed")
    assert b"optimize: stored 6 hash functions, asked 3 by 'speed'" in done.stderr


def test_the_layout_is_that_of_the_filter_that_exists(run, name, valkey):
    assert run("add", name, "a", "--layout", "blocked").returncode == 0
    assert run("add", name, "a").returncode == 1
    with BloomFilter.open(name, client=valkey) as bloom:
        assert bloom.layout == "blocked"
    done = run("add", name, "a", "--layout", "classic")
    assert done.returncode == 2
    assert b"layout: stored blocked, asked classic" in done.stderr


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


def test_exists_streams(start, run, name):
    run("add", name, "a")
    process = start("exists", name, "--seen")
    send(process, b"b\na\n")
    assert answer(process) == b"a\n"
    process.stdin.close()
    assert process.wait(PATIENCE) == 1


def test_exists_without_the_filter_is_an_error_and_no_answer(run, name):
    done = run("exists", name, "a")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == f"bloomlock: there is no filter named '{name}'\n".encode()


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
    done = run("discard", f"no-{name}", "a")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == f"bloomlock: there is no filter named 'no-{name}'\n".encode()


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
