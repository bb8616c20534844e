"""The items that contenders are offered: 40 hexadecimal digits each, like Scrapy's fingerprints.

A span of items is named by a tag and a count, so that every process can make it for itself:

    TAG         items that no other tag has; fewer of the same tag are the first of them
    zipf:TAG    nine of ten from `POPULAR`, few of them very often, the tenth from TAG
    links:FILE  the lines of a file, from the start again after the last
"""

from __future__ import annotations

import random
import zlib
from itertools import cycle, islice
from pathlib import Path

import numpy as np

DIGITS = 40
POPULAR = ("popular", 5_000)
"""What a stream of `zipf:` has seen before."""
SEEN_SHARE = 0.9
ZIPF_EXPONENT = 1.1


def items(tag: str, count: int) -> list[str]:
    """Make the items of a span.

    >>> items("a", 3)[:2] == items("a", 2), set(items("a", 9)) & set(items("b", 9))
    (True, set())
    >>> {len(item) for item in items("zipf:a", 9)}
    {40}
    """
    kind, colon, rest = tag.partition(":")
    if colon and kind == "links":
        return _lines(Path(rest), count)
    if colon and kind == "zipf":
        return _zipf(rest, count)
    return fingerprints(tag, count)


def fingerprints(tag: str, count: int) -> list[str]:
    """Make items that are the same for the same tag."""
    text = random.Random(tag).randbytes(count * DIGITS // 2).hex()
    return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]


def new_in(tag: str, count: int) -> int:
    """Return how many items of a span are new to who saw `POPULAR` only."""
    kind, colon, rest = tag.partition(":")
    if colon and kind == "links":
        return len(set(_lines(Path(rest), count)))
    if colon and kind == "zipf":
        return int(_fresh(rest, count).sum())
    return count


def _fresh(tag: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.random.default_rng(zlib.crc32(tag.encode())).random(count) >= SEEN_SHARE


def _zipf(tag: str, count: int) -> list[str]:
    fresh = _fresh(tag, count)
    weights = np.arange(1, POPULAR[1] + 1) ** -ZIPF_EXPONENT
    generator = np.random.default_rng(zlib.crc32(tag.encode()) + 1)
    ranks = generator.choice(POPULAR[1], size=count, p=weights / weights.sum())
    popular = fingerprints(*POPULAR)
    new = iter(fingerprints(tag, int(fresh.sum())))
    pairs = zip(fresh.tolist(), ranks.tolist(), strict=True)
    return [next(new) if is_new else popular[rank] for is_new, rank in pairs]


def _lines(file: Path, count: int) -> list[str]:
    return list(islice(cycle(file.read_text("utf-8").split()), count))
