"""The items that contenders are offered: 40 hexadecimal digits each, like Scrapy's fingerprints.

A span of items is named by a tag and a count, so that every process can make it for itself:

    TAG        items that no other tag has; fewer of the same tag are the first of them
    zipf:TAG   nine of ten from `POPULAR`, few of them very often, the tenth from TAG
    crawl:TAG  links of a crawl shaped as IRLbot's, of which a tenth is new
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
IRLBOT_NEW = 0.104
"""Of the 394e9 links that IRLbot checked 41e9 were new."""


def items(tag: str, count: int) -> list[str]:
    """Make the items of a span.

    >>> items("a", 3)[:2] == items("a", 2), set(items("a", 9)) & set(items("b", 9))
    (True, set())
    >>> {len(item) for item in items("zipf:a", 9)}
    {40}
    >>> 0.09 < len(set(items("crawl:a", 10_000))) / 10_000 < 0.12
    True
    """
    kind, colon, rest = tag.partition(":")
    if not colon:
        text = random.Random(tag).randbytes(count * DIGITS // 2).hex()
        return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]
    return (_zipf if kind == "zipf" else _crawl)(rest, count)


def new_in(tag: str, count: int) -> int:
    """Return how many items of a span are new to who saw `POPULAR` only."""
    kind, colon, rest = tag.partition(":")
    if not colon:
        return count
    return int(_fresh(rest, count).sum()) if kind == "zipf" else len(set(items(tag, count)))


def cut(items: Sequence[Any], size: int) -> Iterator[Any]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _generator(tag: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(tag.encode()))


def _fresh(tag: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return _generator(tag).random(count) >= SEEN_SHARE


def _zipf(tag: str, count: int) -> list[str]:
    fresh = _fresh(tag, count)
    weights = np.arange(1, POPULAR[1] + 1) ** -ZIPF_EXPONENT
    ranks = _generator(f"ranks {tag}").choice(POPULAR[1], size=count, p=weights / weights.sum())
    popular, new = items(*POPULAR), iter(items(tag, int(fresh.sum())))
    pairs = zip(fresh.tolist(), ranks.tolist(), strict=True)
    return [next(new) if is_new else popular[rank] for is_new, rank in pairs]


def _crawl(tag: str, count: int) -> list[str]:
    """Return links, each new with probability 0.104, else one from before.

    Repeats are Zipf distributed with exponent 1 over all that came before: n ** u of a uniform u
    is at most k with probability ln k / ln n.
    """
    generator = _generator(tag)
    fresh = generator.random(count) < IRLBOT_NEW
    fresh[0] = True
    known = np.cumsum(fresh)
    ranks = np.floor(known ** generator.random(count)).astype(np.int64)
    names = items(tag, int(known[-1]))
    return [names[number] for number in (np.where(fresh, known, ranks) - 1).tolist()]
