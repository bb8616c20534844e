"""Many lines at once: the same lines as one at a time, in bounded memory."""

from __future__ import annotations

import os
import random
import subprocess

import pytest
from cli_process import COMMAND, PATIENCE, answer, environment, send

from bloomlock.cli.options import FilterOptions
from bloomlock.cli.streams import BLOCK_BYTES, BatchSizer, batches, most_lines, split

CHANCE = random.Random(7)
LINES = [
    b"https://example.org/%s/%d" % (b"x" * (number % 40), number)
    for number in (CHANCE.randrange(120_000) for _ in range(200_000))
]
NEW = list(dict.fromkeys(LINES))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bulk") / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


@pytest.mark.parametrize("shared", [True, False])
def test_a_file_as_awk_does(run, file, name, shared):
    place = ("--name", name) if shared else ()
    done = run("dedup", *place, str(file))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"\n".join(NEW) + b"\n"
    if not shared:
        awk = subprocess.run(
            ["awk", "!seen[$0]++", str(file)], capture_output=True, check=True, timeout=60
        )
        assert done.stdout == awk.stdout


@pytest.mark.parametrize("shared", [True, False])
def test_a_pipe_and_several_files(run, file, name, tmp_path, shared):
    place = ("--name", name) if shared else ()
    half = len(LINES) // 2
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_bytes(b"\0".join(LINES[:half]))
    last.write_bytes(b"\0".join([*LINES[-1000:], b"the last"]))
    given = b"\0".join(LINES[half:]) + b"\0"
    done = run("dedup", "-z", *place, str(first), "-", str(last), given=given)
    assert done.returncode == 0
    assert done.stdout == b"\0".join([*NEW, b"the last", b""])


@pytest.mark.parametrize("shared", [True, False])
def test_the_rest_and_the_numbers(run, file, name, shared):
    place = ("--name", name) if shared else ()
    seen: set[bytes] = set()
    rest = [line for line in LINES if line in seen or seen.add(line)]
    assert run("dedup", "--seen", *place, str(file)).stdout == b"\n".join(rest) + b"\n"
    again = 0 if shared else len(NEW)
    assert run("dedup", "--count", *place, str(file)).stdout == b"%d\n" % again
    if shared:
        assert run("add", name, given=file.read_bytes()).stdout == b"0\n"
        done = run("exists", name, "--seen", given=file.read_bytes())
        assert (done.returncode, done.stdout) == (0, file.read_bytes())


@pytest.mark.parametrize("shared", [True, False])
def test_what_has_come_is_answered_before_more_is_waited_for(start, name, shared):
    place = ("--name", name) if shared else ()
    process = start("dedup", *place)
    # More lines than a batch, all at once, and then nothing.
    lines = [b"%d" % number for number in range(9_000)]
    send(process, b"\n".join(lines) + b"\nand a half")
    text = b""
    while len(text.splitlines()) < len(lines):
        text += answer(process)
    assert text == b"\n".join(lines) + b"\n"
    for line in (b" line", b"more"):
        send(process, line + b"\n")
        assert answer(process).endswith(line + b"\n")
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_batches_are_all_lines_in_order(size):
    rng = random.Random(size)
    parts = [[b"%d" % rng.randrange(99) for _ in range(rng.randrange(9))] for _ in range(200)]
    sizer = BatchSizer(size, size)
    lines = [line for part in parts for line in part]
    found = list(batches(iter([list(part) for part in parts]), sizer))
    assert [line for batch in found for line in batch] == lines
    assert max(map(len, found)) <= size
    assert all(found)


def test_lines_are_held_back_only_while_more_are_there():
    sizer = BatchSizer(100, 100)
    coming = batches(iter([[b"a"], [b"b"], [], [b"c"], []]), sizer)
    assert next(coming) == [b"a", b"b"]
    assert next(coming) == [b"c"]


def test_long_lines_are_not_held_back_in_numbers():
    sizer = BatchSizer(1000, 1000, most_bytes=3 * BLOCK_BYTES)
    read = 0

    def blocks():
        nonlocal read
        for _ in range(20):
            read += 1
            sizer.held_bytes += BLOCK_BYTES
            yield b"x" * (BLOCK_BYTES - 1) + b"\n"

    found = batches(split(blocks()), sizer)
    assert len(next(found)) == 3
    assert read == 3


def test_batches_grow_while_answers_come_quickly():
    sizer = BatchSizer(600, 5000)
    sizes = []
    for seconds in (0.1, 0.1, 1.5, 0.1, 0.1, 3.0, 0.1):
        sizes.append(sizer.lines)
        sizer.answered(sizer.lines, seconds)
    assert sizes == [600, 1200, 2400, 2400, 4800, 5000, 2500]


def test_lines_of_a_file_are_counted_and_of_a_pipe_are_not(tmp_path):
    small, large, pipe = tmp_path / "small", tmp_path / "large", tmp_path / "pipe"
    small.write_bytes(b"a\nb\n\nc")
    lines = [b"x" * random.Random(number).randrange(200) for number in range(90_000)]
    large.write_bytes(b"\n".join(lines))
    os.mkfifo(pipe)
    assert 4 <= (most_lines([str(small)]) or 0) <= 5
    found = most_lines([str(large)]) or 0
    assert len(lines) <= found <= 1.4 * len(lines)
    assert most_lines([str(large), str(small)]) in (found + 4, found + 5)
    assert most_lines([str(small), str(pipe)]) is None


def test_a_file_of_more_lines_than_the_default_capacity(run, tmp_path):
    file = tmp_path / "lines"
    count = 1_100_000
    file.write_bytes(b"".join(b"%d\n" % number for number in range(count)))
    done = run("dedup", "--count", str(file))
    assert (done.returncode, done.stderr) == (0, b"")
    # The error rate is one in a million at the end, and less before.
    assert count - 5 <= int(done.stdout) <= count


def test_a_new_filter_has_room_for_the_lines_and_shards_that_batches_can_reach(valkey, name):
    options = FilterOptions(url=valkey, lines=3_000_000)
    with options.create_or_open(name) as bloom:
        assert (bloom.capacity, bloom.shards) == (3_000_000, 3)
    with FilterOptions(url=valkey, lines=5).create_or_open(name) as bloom:
        assert (bloom.capacity, bloom.shards) == (3_000_000, 3)
    with FilterOptions(url=valkey, lines=5).create_or_open(name + "2") as bloom:
        assert (bloom.capacity, bloom.shards) == (1_000_000, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_memory_does_not_grow_with_the_lines(valkey, name, tmp_path, shared):
    place = ("--name", name, "--url", valkey) if shared else ()
    peaks = []
    for count in (100_000, 500_000):
        file = tmp_path / str(count)
        with file.open("wb") as out:
            out.writelines(b"https://example.org/catalogue/%040d\n" % n for n in range(count))
        command = [*COMMAND, "dedup", "--count", "--capacity", "1000000", *place, str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(None, {}))
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert process.communicate()[0]
        peaks.append(used.ru_maxrss)
    # 400,000 more lines of 70 bytes; awk takes more than 100 MB for them.
    assert peaks[1] - peaks[0] < 15_000
