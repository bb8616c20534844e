"""What the processes of these tests do with a filter under a foreign lock."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from bloomlock import BloomFilter
from foreign.factories import open_factory
from foreign.half_way import lock_strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

ERROR_RATE = 1e-9
BATCH = 17


def race_filter(url: str, factory: Any, *, pieces: bool = False) -> BloomFilter:
    """Return the filter that all of them add to."""
    strategy = lock_strategy(factory, pieces=pieces)
    return BloomFilter("race/{1}", 10_000, ERROR_RATE, client=url, strategy=strategy)


def offer(
    url: str,
    lock: tuple[str, Any],
    how: str,
    items: Sequence[str],
    seed: int | None,
    barrier: Any,
    results: Any,
) -> None:
    """Offer all items, in an order of one's own if there is a seed; report which were new."""
    order = list(items)
    if seed is not None:
        random.Random(seed).shuffle(order)
    with open_factory(*lock) as factory:
        made = race_filter(url, factory, pieces=how == "add in pieces")
        barrier.wait(60)
        if how != "add_many":
            won = [item for item in order if made.add(item)]
        else:
            won = []
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                answers = made.add_many(batch)
                won += [item for item, new in zip(batch, answers, strict=True) if new]
    results.put(won)


def add_one(url: str, lock: tuple[str, Any], ttl: float, results: Any) -> None:
    """Add one item; report the answer, or the name of the error."""
    with open_factory(*lock, ttl) as factory:
        try:
            results.put(race_filter(url, factory).add("item"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            results.put(type(error).__name__)
