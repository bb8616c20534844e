"""The items that contenders are offered: 40 hexadecimal digits each, like Scrapy's fingerprints.

A span of items is named by a tag and a count, so that every process can make it for itself. Fewer
items of a tag are the first of them. Of `zipf:TAG` nine of ten are from `POPULAR`, few of them
very often.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Span = tuple[str, int]

DIGITS = 40
POPULAR: Span = ("popular", 5_000)
"""What a stream of `zipf:` has seen before."""
WARM_UP: Span = ("warm-up", 20)
"""Calls before the timed ones: the processor's caches held other things until now."""
SEEN_SHARE = 0.9
ZIPF_EXPONENT = 1.1


def items(tag: str, count: int) -> list[str]:
    """Make the items of a span.

    >>> items("a", 3)[:2] == items("a", 2), set(items("a", 9)) & set(items("b", 9))
    (True, set())
    >>> {len(item) for item in items("zipf:a", 9)}
    {40}
    """
    if not tag.startswith("zipf:"):
        text = random.Random(tag).randbytes(count * DIGITS // 2).hex()
        return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
    fresh = _fresh(tag, count)
    weights = np.arange(1, POPULAR[1] + 1) ** -ZIPF_EXPONENT
    chance = _generator(f"ranks {tag}")
    ranks = chance.choice(POPULAR[1], size=count, p=weights / weights.sum())
    popular, new = items(*POPULAR), iter(items(tag.removeprefix("zipf:"), count))
    pairs = zip(fresh.tolist(), ranks.tolist(), strict=True)
    return [next(new) if is_new else popular[rank] for is_new, rank in pairs]


def new_in(tag: str, count: int) -> int:
    """Return how many items of a span are new to who saw `POPULAR` only."""
    return int(_fresh(tag, count).sum()) if tag.startswith("zipf:") else count


def cut(items: Sequence[Any], size: int) -> Iterator[Any]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _generator(tag: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(tag.encode()))


def _fresh(tag: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return _generator(tag).random(count) >= SEEN_SHARE
