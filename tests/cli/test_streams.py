"""Blocks become lines, and lines batches, in order and in bounded memory; without a process."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from bloomlock.cli.streams import (
    BLOCK_BYTES,
    BatchSizer,
    LineTooLongError,
    batches,
    most_lines,
    split,
)


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n\na\nbc\n\n", b"ab\ncd\nef"])
def test_lines_do_not_depend_on_how_the_blocks_come(text):
    whole = text.split(b"\n")
    if not whole[-1]:
        whole.pop()
    for size in range(1, len(text) + 1):
        blocks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(itertools.chain.from_iterable(split(blocks))) == whole


def test_lines_are_there_as_soon_as_their_end_is():
    lines = split(iter([b"a\nb", b"c", b"\nd"]))
    assert [next(lines), next(lines), next(lines)] == [[b"a"], [b"bc"], [b"d"]]


def test_a_line_beyond_the_limit_is_refused():
    lines = split([b"12345\n", b"1234", b"5678", b"\n"], limit=7)
    assert next(lines) == [b"12345"]
    with pytest.raises(LineTooLongError, match="longer than 7 bytes"):
        next(lines)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_batches_are_all_lines_in_order(size):
    rng = random.Random(size)
    parts = [[b"%d" % rng.randrange(99) for _ in range(rng.randrange(9))] for _ in range(200)]
    lines = [line for part in parts for line in part]
    found = list(batches(iter([list(part) for part in parts]), BatchSizer(size, size)))
    assert [line for batch in found for line in batch] == lines
    assert max(map(len, found)) <= size
    assert all(found)


def test_lines_are_held_back_only_while_more_are_there():
    coming = batches(iter([[b"a"], [b"b"], [], [b"c"], []]), BatchSizer(100, 100))
    assert [next(coming), next(coming)] == [[b"a", b"b"], [b"c"]]


def test_long_lines_are_not_held_back_in_numbers():
    sizer = BatchSizer(1000, 1000, most_bytes=3 * BLOCK_BYTES)
    read = 0

    def blocks():
        nonlocal read
        for _ in range(20):
            read += 1
            sizer.held_bytes += BLOCK_BYTES
            yield b"x" * (BLOCK_BYTES - 1) + b"\n"

    assert len(next(batches(split(blocks()), sizer))) == 3
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
