"""`bloomlock dedup`: which lines come out, byte for byte."""

from __future__ import annotations

import os
import random
import threading

import pytest
import redis

from bloomlock import BloomFilter, list_filters


def test_each_line_once_in_order(run, name):
    done = run("dedup", "--name", name, given=b"b\na\nb\n\nc\n\na\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"b\na\n\nc\n", b"")
    again = run("dedup", "--name", name, given=b"d\nb\n")
    assert (again.returncode, again.stdout, again.stderr) == (0, b"d\n", b"")


def test_seen_is_the_rest(run, name):
    done = run("dedup", "--seen", "--name", name, given=b"a\nb\na\nc\nb\na\n")
    assert (done.returncode, done.stdout) == (0, b"a\nb\na\n")


def test_count_is_the_number_of_lines_it_would_write(run, name):
    text = b"a\nb\na\nc\nb\na\n"
    assert run("dedup", "--count", "--name", name, given=text).stdout == b"3\n"
    assert run("dedup", "--count", "--name", name, given=text).stdout == b"0\n"
    assert run("dedup", "--count", "--seen", "--name", name, given=text).stdout == b"6\n"


@pytest.mark.parametrize("options", [(), ("--seen",)])
def test_nothing_gives_nothing(run, options):
    done = run("dedup", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_bytes_pass_untouched(run, name):
    lines = [bytes([byte]) * 3 for byte in range(256) if byte != ord("\n")]
    lines += [b"\xff\xfe\x00", b"a\r", b"a", b" a", b"a ", "é".encode(), b"e\xcc\x81"]
    text = b"\n".join(lines)
    done = run("dedup", "--name", name, given=text)
    assert done.stdout == text + b"\n"
    assert done.stderr == b""
    assert run("dedup", "--name", name, given=text).stdout == b""


def test_a_last_line_without_an_end_is_the_same_line(run, tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_bytes(b"a\nb")
    second.write_bytes(b"b\nc\na")
    done = run("dedup", str(first), str(second))
    assert done.stdout == b"a\nb\nc\n"


def test_files_and_standard_input_in_the_given_order(run, tmp_path):
    file = tmp_path / "-odd name\xe9"
    file.write_bytes(b"f\nboth\n")
    done = run("dedup", "-", "--", str(file), "-", given=b"both\ni\n")
    assert done.stdout == b"both\ni\nf\n"


def test_a_named_pipe_is_a_file(run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a\na\nb\n",), daemon=True)
    writer.start()
    assert run("dedup", str(pipe)).stdout == b"a\nb\n"


def test_zero_terminated(run):
    done = run("dedup", "-z", given=b"a\nb\0a\0a\nb\0\0c")
    assert done.stdout == b"a\nb\0a\0\0c\0"


def test_a_large_file(run, tmp_path, name):
    rng = random.Random(5)
    lines = [b"https://example.org/%d" % rng.randrange(120_000) for _ in range(200_000)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    done = run("dedup", "--name", name, "--capacity", "200000", "--error-rate", "1e-9", str(file))
    assert done.returncode == 0
    assert done.stdout.split() == list(dict.fromkeys(lines))


def test_a_line_of_100_megabytes(run):
    line = b"x" * 100_000_000
    done = run("dedup", given=b"a\n" + line + b"\na\n")
    assert done.returncode == 0
    assert done.stdout == b"a\n" + line + b"\n"


def test_long_lines_are_told_apart(run):
    line = b"x" * 1_000_000
    done = run("dedup", given=line + b"\n" + line + b"y\n" + line + b"\n" + line + b"y")
    assert done.stdout == line + b"\n" + line + b"y\n"


def test_without_a_name_nothing_is_shared_and_nothing_left(run, valkey):
    before = redis.Redis.from_url(valkey).dbsize()
    for _ in range(2):
        assert run("dedup", given=b"a\na\n").stdout == b"a\n"
        assert run("dedup", "--url", valkey, given=b"a\na\n").stdout == b"a\n"
    assert redis.Redis.from_url(valkey).dbsize() == before


@pytest.mark.parametrize("url", [None, "unix:///nowhere/at/all.sock"])
def test_without_a_name_and_a_url_there_is_no_server(run, tmp_path, url):
    home = tmp_path / "home"
    done = run("dedup", given=b"a\na\n", url=url, BLOOMLOCK_HOME=str(home))
    assert (done.returncode, done.stdout) == (0, b"a\n")
    assert not home.exists()


def test_url_wins_over_the_environment(run, valkey, name):
    done = run("dedup", "--name", name, "--url", valkey, url="redis://127.0.0.1:1", given=b"a\n")
    assert done.stdout == b"a\n"
    assert name in list_filters(client=valkey)


def test_an_existing_filter_is_taken_as_it_is(run, valkey, name):
    with BloomFilter(name, 500, 0.001, client=valkey, seeds=(1, 2, 3, 4)) as bloom:
        bloom.add("a")
        assert run("dedup", "--name", name, given=b"a\nb\n").stdout == b"b\n"
        fits = ("--capacity", "500", "--error-rate", "0.001")
        assert run("dedup", "--name", name, *fits, given=b"b\nc\n").stdout == b"c\n"
        assert bloom.exists("c")


@pytest.mark.parametrize("strategy", ["lua", "transaction", "pipeline", "lock"])
def test_strategies(run, name, strategy):
    done = run("dedup", "--name", name, "--strategy", strategy, given=b"a\nb\na\nc\n")
    assert (done.returncode, done.stdout) == (0, b"a\nb\nc\n")


@pytest.mark.parametrize("on_server", [True, False])
def test_a_full_throw_away_filter_stops(run, valkey, on_server):
    lines = [b"%d" % i for i in range(20_000)]
    small = ("--capacity", "1000", "--error-rate", "0.001")
    place = ("--url", valkey) if on_server else ()
    done = run("dedup", *small, *place, given=b"\n".join(lines))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        b"bloomlock: there are more than about 1000 different lines; give a larger --capacity"
    )
    written = done.stdout.split()
    assert 1000 <= len(written) < 5000
    assert set(written) <= set(lines)


def test_a_full_shared_filter_warns(run, name):
    text = b"".join(b"%d\n" % i for i in range(1500))
    done = run("dedup", "--name", name, "--capacity", "1000", given=text)
    assert done.returncode == 0
    warnings = done.stderr.decode().splitlines()
    assert warnings
    assert all(line.startswith(f"bloomlock: filter '{name}' is ") for line in warnings)
    refused = run("dedup", "--name", name, "--on-full", "raise", given=b"1\nnew\n")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.splitlines()[-1].endswith(b"--on-full raise refuses new ones")
