"""The items that contenders are offered: 40 hexadecimal digits each, like Scrapy's fingerprints.

A span of items is named by a tag and a count, so that every process can make it for itself. Fewer
items of a tag are the first of them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Span = tuple[str, int]

DIGITS = 40
WARM_UP: Span = ("warm-up", 20)
"""Calls before the timed ones: the processor's caches held other things until now."""


def items(tag: str, count: int) -> list[str]:
    """Make the items of a span.

    >>> items("a", 3)[:2] == items("a", 2), set(items("a", 9)) & set(items("b", 9))
    (True, set())
    """
    text = random.Random(tag).randbytes(count * DIGITS // 2).hex()
    return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]


def cut(items: Sequence[Any], size: int) -> Iterator[Any]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
