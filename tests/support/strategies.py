"""The strategies that every filter has to work with."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BITMAPS = ("atomic", "lua", "transaction", "pipeline", "lock")
"""Those that share a bitmap. Written out, so that one missing from the library fails a test."""

STRATEGIES = (*BITMAPS, "native")
"""All. A test with the parameter "native" gets servers that have BF.* (tests/conftest.py)."""

EXACT = ("atomic", "lua", "transaction", "lock", "native")
"""Those of which one of several concurrent adds wins."""


def maker_of(strategy: str) -> str:
    """Return a strategy that another client of the same filter may have."""
    return "native" if strategy == "native" else "atomic"


def with_hashes(strategy: str, num_hashes: int) -> dict[str, int]:
    """Return the option for a number of hash functions, where it is not the server's own."""
    return {} if strategy == "native" else {"num_hashes": num_hashes}


def in_pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return (strategy, a, b) so that any two meet: a with b, and both with each strategy.

    The full product has six times as many, and takes as much longer.
    """
    triples = [
        (STRATEGIES[(i + j) % len(STRATEGIES)], a, b)
        for (i, a), (j, b) in product(enumerate(first), enumerate(second))
    ]
    assert len({(s, a) for s, a, _ in triples}) == len(STRATEGIES) * len(first)
    assert len({(s, b) for s, _, b in triples}) == len(STRATEGIES) * len(second)
    return triples
