"""Blocks become lines, and lines batches, in order and in bounded memory; without a command."""

from __future__ import annotations

import itertools
import os
import random
import threading

import pytest

from bloomlock.cli import lines
from bloomlock.cli.errors import Failure
from bloomlock.cli.lines import FIRST_LINES, SignalGuard, count_lines, read_lines


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a file in blocks of some bytes, and return the batches."""

    def read(text, block, **options):
        monkeypatch.setattr(lines, "LINE_BYTES", block)
        file = tmp_path / "text"
        file.write_bytes(text)
        return list(read_lines([str(file)], SignalGuard(), **{"most": 1, **options}))

    return read


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n\na\nbc\n\n", b"ab\ncd\nef"])
def test_lines_do_not_depend_on_how_the_blocks_come(read, text):
    whole = text.split(b"\n")
    if not whole[-1]:
        whole.pop()
    for size in range(1, len(text) + 1):
        assert list(itertools.chain.from_iterable(read(text, size))) == whole


def test_a_line_beyond_the_limit_is_refused(read):
    assert read(b"1234567\n", 4, limit=7) == [[b"1234567"]]
    with pytest.raises(Failure, match="longer than 7 bytes"):
        read(b"12345678\n", 4, limit=7)


def test_full_batches_double_and_are_all_lines_in_order(read):
    chosen = random.Random(1)
    numbers = [b"%d" % chosen.randrange(99) for _ in range(50_000)]
    found = read(b"\n".join(numbers), 1 << 20, most=5_000)
    assert [line for batch in found for line in batch] == numbers
    assert [*map(len, found)][:6] == [
        FIRST_LINES,
        *(FIRST_LINES * 2**n for n in (1, 2, 3)),
        *[5_000] * 2,
    ]


def test_lines_of_a_pipe_are_there_as_soon_as_their_end_is():
    reader, writer = os.pipe()
    found = read_lines([f"/dev/fd/{reader}"], SignalGuard(), 1000)
    for given, batch in ((b"a\nb", [b"a"]), (b"c\n\nd", [b"bc", b""])):
        os.write(writer, given)
        assert next(found) == batch
    os.close(writer)
    assert list(found) == [[b"d"]]
    os.close(reader)


def test_what_is_held_back_of_a_pipe_is_bounded(monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES", 1)
    reader, writer = os.pipe()
    threading.Thread(target=os.write, args=(writer, b"x\n" * 5000), daemon=True).start()
    assert len(next(read_lines([f"/dev/fd/{reader}"], SignalGuard(), 1000))) <= 500
    os.close(reader)
    os.close(writer)


def test_lines_of_a_file_are_counted_and_of_a_pipe_are_not(tmp_path):
    small, large, pipe = tmp_path / "small", tmp_path / "large", tmp_path / "pipe"
    small.write_bytes(b"a\nb\n\nc")
    text = [b"x" * random.Random(number).randrange(200) for number in range(90_000)]
    large.write_bytes(b"\n".join(text))
    os.mkfifo(pipe)
    assert count_lines([str(small)]) == 4
    found = count_lines([str(large)])
    assert found == len(text)
    assert count_lines([str(large), str(small)]) == found + 4
    assert count_lines([str(small), str(pipe)]) is None
