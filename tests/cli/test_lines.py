"""Blocks become lines, and lines batches, in order and in bounded memory; without a process."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from bloomlock.cli.lines import (
    BLOCK_BYTES,
    MOST_BLOCKS,
    BatchSizes,
    LineTooLongError,
    batches,
    measure,
)

SMALL = BatchSizes(1, 1)


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n\na\nbc\n\n", b"ab\ncd\nef"])
def test_lines_do_not_depend_on_how_the_blocks_come(text):
    whole = text.split(b"\n")
    if not whole[-1]:
        whole.pop()
    for size in range(1, len(text) + 1):
        blocks = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(itertools.chain.from_iterable(batches(blocks, SMALL))) == whole


def test_lines_are_there_as_soon_as_their_end_is():
    lines = batches(iter([b"a\nb", b"c", b"\nd"]), SMALL)
    assert [next(lines), next(lines), next(lines)] == [[b"a"], [b"bc"], [b"d"]]


def test_a_line_beyond_the_limit_is_refused():
    lines = batches([b"12345\n", b"1234", b"5678", b"\n"], SMALL, limit=7)
    assert next(lines) == [b"12345"]
    with pytest.raises(LineTooLongError, match="longer than 7 bytes"):
        next(lines)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_batches_are_all_lines_in_order(size):
    rng = random.Random(size)
    lines = [b"%d" % rng.randrange(99) for _ in range(1000)]
    text = b"\n".join(lines)
    cuts = [0, *sorted(rng.sample(range(len(text)), 200)), len(text)]
    blocks = [text[start:end] for start, end in itertools.pairwise(cuts)]
    found = list(batches(blocks, BatchSizes(size, size)))
    assert [line for batch in found for line in batch] == lines
    assert max(map(len, found)) <= size
    assert all(found)


def test_lines_are_held_back_only_while_more_are_there():
    coming = batches(iter([b"a\n", b"b\n", b"", b"c\n", b""]), BatchSizes(100, 100))
    assert [next(coming), next(coming)] == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize("length", [1, 3])
def test_what_is_held_back_is_bounded(length):
    """Lines of one block come a few at a time, one that is longer comes at once."""
    read = 0

    def blocks():
        nonlocal read
        for number in range(60):
            read += 1
            yield b"x" * (BLOCK_BYTES - 1) + (b"x" if (number + 1) % length else b"\n")

    found = next(batches(blocks(), BatchSizes(1000, 1000)))
    assert (len(found), read) == ((MOST_BLOCKS, MOST_BLOCKS) if length == 1 else (1, 3))


def test_full_batches_double():
    found = batches([b"\n" * 600, b"", b"\n" * 20, b"", b"\n" * 50_000], BatchSizes(600, 5000))
    assert [*map(len, found)][:6] == [600, 20, 1200, 2400, 4800, 5000]


def test_lines_of_a_file_are_counted_and_of_a_pipe_are_not(tmp_path):
    small, large, pipe = tmp_path / "small", tmp_path / "large", tmp_path / "pipe"
    small.write_bytes(b"a\nb\n\nc")
    lines = [b"x" * random.Random(number).randrange(200) for number in range(90_000)]
    large.write_bytes(b"\n".join(lines))
    os.mkfifo(pipe)
    assert measure([str(small)]) == (6, 4)
    size, found = measure([str(large)])
    assert size == large.stat().st_size
    assert len(lines) <= (found or 0) <= 1.4 * len(lines)
    assert measure([str(large), str(small)]) == (size + 6, found + 4)
    assert measure([str(small), str(pipe)]) == (None, None)
