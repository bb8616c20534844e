"""The strategies that every filter has to work with."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock")
"""Written out, so that a strategy missing from the library fails a test."""


def in_pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return (strategy, a, b) so that any two meet: a with b, and both with each strategy.

    The full product has five times as many, and takes as much longer.
    """
    triples = [
        (STRATEGIES[(i + j) % len(STRATEGIES)], a, b)
        for (i, a), (j, b) in product(enumerate(first), enumerate(second))
    ]
    assert len({(s, a) for s, a, _ in triples}) == len(STRATEGIES) * len(first)
    assert len({(s, b) for s, _, b in triples}) == len(STRATEGIES) * len(second)
    return triples
