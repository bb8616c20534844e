"""Blocks to lines, without a process."""

from __future__ import annotations

import itertools

import pytest

from bloomlock.cli.streams import LineTooLongError, split


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
    assert next(lines) == [b"a"]
    assert next(lines) == [b"bc"]
    assert next(lines) == [b"d"]


def test_a_line_beyond_the_limit_is_refused():
    lines = split([b"12345\n", b"1234", b"5678", b"\n"], limit=7)
    assert next(lines) == [b"12345"]
    with pytest.raises(LineTooLongError, match="longer than 7 bytes"):
        next(lines)
