"""Items whose work failed: listed, offered once more, or forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bloomlock.claims import Failure, drop_claims, retry_claims
from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.hashing import encode_items
from bloomlock.keys import ClaimKeys
from bloomlock.parallel import in_parallel

from .claim_session import Offer, place_of
from .claims import refuse_strategy
from .state import in_one_generation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bloomlock.claims import Place
    from bloomlock.effects import Core

    from .generation import View
    from .state import FilterState

    Step = Callable[[Sequence[tuple[Place, Sequence[bytes]]]], Core[list[bool | None]]]


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item whose work failed, under `max_attempts`.

    Attributes:
        item: The item.
        payload: What its last claim was given.
        attempts: How often it failed.
        error: The text of the last error.
        is_final: Whether it is given to no worker any more.
    """

    item: str | bytes
    payload: str | bytes | None
    attempts: int
    error: str
    is_final: bool


def failed(state: FilterState) -> Core[list[FailedItem]]:
    """Return the items whose work failed and that were not committed since."""
    view = yield from state.current()
    found = []
    asked = [
        ask(
            keys.counts,
            encode_command("HGET", keys.counts, "header"),
            encode_command("HVALS", keys.failed),
        )
        for keys in (ClaimKeys.of(shard.key) for shard in view.shards)
    ]
    for header, stored in (yield from in_parallel(asked)):
        if header == view.header.to_bytes(HEADER_BYTES, "big"):
            found += [_failed_item(Failure.decode(data)) for data in stored]
    return found


def _failed_item(failure: Failure) -> FailedItem:
    offer = Offer.of(failure.carried)
    error = failure.error.decode(errors="replace")
    return FailedItem(offer.item, offer.payload, failure.attempts, error, failure.is_final)


def retry(state: FilterState, items: Iterable[str | bytes]) -> Core[list[bool]]:
    """Offer items once more; for each whether a worker has it or is given it."""
    return (yield from _settle(state, items, retry_claims))


def drop(state: FilterState, items: Iterable[str | bytes]) -> Core[list[bool]]:
    """Forget items; for each whether it was there to be forgotten."""
    return (yield from _settle(state, items, drop_claims))


def _settle(state: FilterState, items: Iterable[str | bytes], step: Step) -> Core[list[bool]]:
    refuse_strategy(state)
    wanted = encode_items(list(items))

    def work(view: View) -> Core[list[bool] | None]:
        places: dict[Place, list[int]] = {}
        for index, data in enumerate(wanted):
            number, _ = view.hasher.locate(data)
            places.setdefault(place_of(view, number), []).append(index)
        found = yield from step(
            [
                (place, [view.hasher.identify(wanted[index]) for index in indices])
                for place, indices in places.items()
            ]
        )
        if None in found:
            return None
        order = [index for indices in places.values() for index in indices]
        answers = dict(zip(order, found, strict=True))
        return [bool(answers[index]) for index in range(len(wanted))]

    return (yield from in_one_generation(state, work)) if wanted else []
