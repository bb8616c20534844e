"""`bloomlock dedup`: which lines come out, byte for byte, once in all processes together."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections import Counter

import pytest
from cli_process import COMMAND, environment

from bloomlock import BloomFilter

CHANCE = random.Random(7)
LINES = [
    b"https://example.org/%s/%d" % (b"x" * (number % 40), number)
    for number in (CHANCE.randrange(30_000) for _ in range(50_000))
]
NEW = list(dict.fromkeys(LINES))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bulk") / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


@pytest.fixture(params=[True, False], ids=["on a server", "in the process"])
def place(request, name):
    """Options that say where the filter is."""
    return ("--name", name) if request.param else ()


def test_bytes_pass_untouched(run, place):
    lines = [bytes([byte]) * 3 for byte in range(256) if byte != ord("\n")]
    lines += [b"\xff\xfe\x00", b"a\r", b"a", b" a", b"a ", "é".encode(), b"e\xcc\x81"]
    text = b"\n".join(lines)
    assert run("dedup", *place, given=text) == (0, text + b"\n", b"")
    assert run("dedup", "--seen", *place, given=text).stdout == (text + b"\n") * bool(place)


def test_files_pipes_and_standard_input_in_the_given_order(run, tmp_path):
    file, pipe = tmp_path / "-odd name\xe9", tmp_path / "pipe"
    # A last line without an end is the same line.
    file.write_bytes(b"f\nboth\nlast")
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"p\nlast\nboth",), daemon=True).start()
    done = run("dedup", "-", "--", str(file), str(pipe), "-", given=b"both\ni\n")
    assert done.stdout == b"both\ni\nf\nlast\np\n"


def test_a_file_as_awk_does(run, file, place):
    assert run("dedup", *place, str(file)) == (0, b"\n".join(NEW) + b"\n", b"")
    seen: set[bytes] = set()
    rest = [line for line in LINES if line in seen or seen.add(line)]
    expected = LINES if place else rest
    assert run("dedup", "--seen", *place, str(file)).stdout == b"\n".join(expected) + b"\n"


def test_lines_that_are_added_and_asked_for_in_bulk(run, file, name):
    text = file.read_bytes()
    assert run("filter", "create", name).returncode == 0
    assert run("add", name, given=text).stdout == b"%d\n" % len(NEW)
    assert run("add", name, given=text)[:2] == (1, b"0\n")
    assert run("exists", name, "--seen", given=text)[:2] == (0, text)
    assert run("exists", name, "--new", given=b"no\n" + text).stdout == b"no\n"


def test_without_a_name_nothing_is_shared_and_nothing_left(run, tmp_path, r):
    assert run("dedup", given=b"a\na\n").stdout == b"a\n"
    assert r.dbsize() == 0
    home = tmp_path / "home"
    done = run("dedup", given=b"a\na\n", url="unix:///nowhere", BLOOMLOCK_HOME=str(home))
    assert (done.returncode, done.stdout, home.exists()) == (0, b"a\n", False)


def test_an_existing_filter_is_taken_as_it_is(run, valkey, name):
    with BloomFilter(name, 500, 0.001, client=valkey, optimize="memory") as bloom:
        bloom.add("a")
        assert run("dedup", "--name", name, given=b"a\nb\n").stdout == b"b\n"
        fits = ("--error-rate", "0.001", "--optimize", "memory")
        assert run("dedup", "--name", name, *fits, given=b"b\nc\n").stdout == b"c\n"
        assert bloom.exists("c")


@pytest.mark.parametrize("kind", [("--window", "7d"), ("--grow",), ("--optimize", "memory")])
def test_kinds(run, name, kind):
    words = ("dedup", "--name", name, *kind)
    assert run(*words, given=b"a\nb\na\nc\n") == (0, b"a\nb\nc\n", b"")
    assert run(*words, given=b"d\nb\n") == (0, b"d\n", b"")


def test_a_full_throw_away_filter_stops(run):
    lines = [b"%d" % i for i in range(20_000)]
    small = ("--capacity", "1000", "--error-rate", "0.001")
    done = run("dedup", *small, given=b"\n".join(lines))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        b"bloomlock: there are more than about 1000 different lines; give a larger --capacity"
    )
    written = done.stdout.split()
    assert 1000 <= len(written) < 5000
    assert set(written) <= set(lines)


@pytest.mark.parametrize(("given", "room"), [(["-"], 1_000_000), ([], 1_200_001)])
def test_a_new_filter_has_room_for_the_lines_of_the_files(
    run, valkey, name, tmp_path, *, given, room
):
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 1_200_000)
    # How many lines come through a pipe is not known.
    assert run("dedup", "--name", name, str(file), *given, given=b"x\n") == (0, b"x\n", b"")
    with BloomFilter.open(name, client=valkey) as bloom:
        assert bloom.capacity == room
    assert run("dedup", "--name", name, given=b"x\ny\n") == (0, b"y\n", b"")


def test_memory_does_not_grow_with_the_lines(valkey, tmp_path):
    peaks = []
    for count in (50_000, 250_000):
        file = tmp_path / str(count)
        with file.open("wb") as out:
            out.writelines(b"https://example.org/catalogue/%040d\n" % n for n in range(count))
        command = [*COMMAND, "dedup", "--capacity", "1000000", str(file)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(valkey, {}))
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(used.ru_maxrss)
    # 200,000 more lines of 70 bytes; awk takes more than 50 MB for them.
    assert peaks[1] - peaks[0] < 15_000


@pytest.mark.free_running
def test_each_line_is_written_once_in_all(start, name, tmp_path):
    lines = [b"item %d" % i for i in range(3_000)]
    processes = []
    for number in range(3):
        random.Random(number).shuffle(lines)
        file = tmp_path / str(number)
        file.write_bytes(b"\n".join(lines + lines[:100]) + b"\n")
        with (tmp_path / f"{number}.out").open("wb") as output:
            processes.append(start("dedup", "--name", name, str(file), stdout=output))
    for process in processes:
        assert process.communicate() == (None, b"")
        assert process.returncode == 0
    written = [(tmp_path / f"{number}.out").read_bytes().splitlines() for number in range(3)]
    assert Counter(line for each in written for line in each) == Counter(lines)
