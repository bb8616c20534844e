"""How items are forgotten: one script for the items of each shard.

An item is forgotten if it is there by the version that it has, and gets a new one of which not all
bits are set. The client chooses the new version at random, so it knows by it whether a try whose
reply was lost was carried out, and may repeat it.

Before the first item of a filter is forgotten all its shards get the flag that says so. So when a
`discard` has returned, every later reply of any shard has the flag.
"""

from __future__ import annotations

import struct
from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

from bloomlock.descriptor import HEADER_BYTES, says_forgotten, unflagged
from bloomlock.effects import ConnectionLost, Pause
from bloomlock.errors import (
    BloomlockError,
    CapacityError,
    OutcomeUnknownError,
    PartialResultError,
    batch_error,
)
from bloomlock.hashing import encode_item, encode_items
from bloomlock.keys import forgotten_key
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of
from bloomlock.shard_hashing import Chained
from bloomlock.strategies.base import header_from_bytes
from bloomlock.strategies.cells import bits_of_cells, packed_window

from .batches import fail_after
from .operation import Operation, Repeats
from .state import in_one_generation
from .support import DISCARD, check_support
from .versions import new_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.scripts import Call
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

    Item = str | bytes

ITEMS_PER_CHUNK = 10_000
BITS_PER_CALL = 2048
"""Bits of the versions that items have, and as many of those they are to have: about a millisecond
of the server's time."""

VERSIONS_TRIED = 64
"""In a filter at its error rate one is enough; of one that has all bits set none is."""

CERTAIN_PART = 0.75
"""Part of a time window for which what a try has done is found, whose reply was lost."""

_SCRIPT, NEEDS = Script("header", "cells", "discard"), "discard needs"
_FORGOTTEN, _ABSENT, _TAKEN = 1, 0, 2


def discard(state: FilterState, item: Item) -> Core[bool]:
    """Forget one item; True if it was there."""
    check_support(DISCARD, state.strategy.name)
    (answer,) = yield from _Discards(state, [encode_item(item)]).run()
    return answer


def remove(state: FilterState, item: Item) -> Core[None]:
    """Forget one item, or raise KeyError."""
    if not (yield from discard(state, item)):
        raise KeyError(item)


def discard_many(state: FilterState, items: Iterable[Item]) -> Core[list[bool]]:
    """Forget many items; for each whether it was there."""
    if isinstance(items, (str, bytes)):
        raise TypeError(
            f"items must be an iterable of str or bytes, not one {type(items).__name__}"
        )
    check_support(DISCARD, state.strategy.name)
    results: list[bool] = []
    stream = iter(items)
    while taken := list(islice(stream, ITEMS_PER_CHUNK)):
        try:
            encoded = list(encode_items(taken, len(results)))
            answers = yield from _Discards(state, encoded).run()
        except Exception as error:  # noqa: BLE001 - raised again
            fail_after(results, error)
        results += answers
    return results


class _Discards:
    """Some items on their way to be forgotten.

    Args:
        state: The filter.
        items: Encoded; one that is repeated is forgotten once.
    """

    def __init__(self, state: FilterState, items: Sequence[bytes]) -> None:
        self._state = state
        self._items = items
        self._left = dict.fromkeys(items)
        self._answers: dict[bytes, bool] = {}
        self._versions: dict[bytes, bytes] = {}
        # Items of which a try was lost, which may have been carried out.
        self._doubtful: set[bytes] = set()
        self._tries = Counter[bytes]()
        self._begun = state.clock()

    def run(self) -> Core[list[bool]]:
        """Return for each item whether it was there."""
        try:
            yield from in_one_generation(self._state, self._forget)
        except Exception as error:  # noqa: BLE001 - raised again
            self._fail(error)
        finally:
            # Whatever the outcome, this object gives no answer from before.
            self._state.forget()
        return self._results()

    def _is_long_ago(self, view: View) -> bool:
        """Return whether the bits of a version that was in force since may be wiped by now."""
        window = view.descriptor.window
        if window is None:
            return False
        return self._state.clock() - self._begun > CERTAIN_PART * window.length_us / 10**6

    def _results(self) -> list[bool]:
        """Return the answers to the items in order, as far as they are known."""
        results: list[bool] = []
        seen: set[bytes] = set()
        for item in self._items:
            if item not in self._answers:
                break
            results.append(self._answers[item] and item not in seen)
            seen.add(item)
        return results

    def _fail(self, error: Exception) -> None:
        known: list[bool | None] = [*self._results()]
        if isinstance(error, PartialResultError):
            error.results[:] = known
            raise error
        unknown = sum(item in self._doubtful for item in self._left)
        if unknown:
            known += [self._answers.get(item) for item in self._items[len(known) :]]
            raise OutcomeUnknownError(
                f"the reply was lost when {unknown} items were discarded from filter "
                f"{self._state.keys.name!r}; each may or may not have been forgotten; repeating "
                f"the discard is harmless ({error})",
                known,
            ) from error
        if known:
            raise batch_error(error, known) from error
        raise error

    def _forget(self, view: View) -> Core[bool | None]:
        """Forget what is left; None: it met another generation, or heard of forgotten items."""
        if len(view.shards) > 1 and (view.forgotten is None or not view.forgotten.is_everywhere):
            view = yield from self._leave_out_absent(view)
            if self._left and not (yield from self._flag_all(view)):
                return None
            view = self._state.view or view
        repeats = Repeats()
        while self._left:
            lost = yield from self._forget_once(view)
            if lost is None:
                return None
            if lost:
                pause = repeats.pause(lost, answered=False)
                if pause is None:
                    raise lost[0].cause from None
                yield Pause(pause)
        return True

    def _leave_out_absent(self, view: View) -> Core[View]:
        """Answer items that are not there: where nothing is forgotten no client is to pay for it.

        Returns:
            The view to go on with.
        """
        left = list(self._left)
        there = yield from Operation(self._state, left, write=False).run(view)
        view = self._state.view or view
        for item, found in zip(left, there, strict=True):
            if not found and item not in self._doubtful:
                self._answer(item, False)
        return view

    def _answer(self, item: bytes, answer: bool) -> None:
        self._answers[item] = answer
        del self._left[item]

    def _flag_all(self, view: View) -> Core[bool]:
        """Set the flag in all shards; False: the filter is of another generation."""
        arguments: list[bytes | int] = [_header_bytes(view), 0]
        calls = [
            _SCRIPT.call([([shard.key, forgotten_key(shard.key)], arguments)], repeatable=True)
            for shard in view.shards
        ]
        for (reply,) in (yield from in_parallel(calls)):
            found = header_from_bytes(answer_of(reply, NEEDS)[0])
            if not view.descriptor.has_header(unflagged(found)):
                return False
        now = self._state.note_forgetting(view)
        if now.forgotten is not None and now.header == view.header:
            now.forgotten.is_everywhere = True
            return True
        return False

    def _forget_once(self, view: View) -> Core[list[ConnectionLost] | None]:
        """Ask once for what is left; return what was lost, None for another generation."""
        by_shard = self._by_shard(view)
        hashes = {number: _hashes(view, view.shards[number]) for number in by_shard}
        asked = {
            number: [self._words(view, item, hashes[number]) for item in items]
            for number, items in by_shard.items()
        }
        answered = yield from in_parallel(
            [
                _call(view.shards[number], _expected(view, hashes[number]), words)
                for number, words in asked.items()
            ]
        )
        lost: list[ConnectionLost] = []
        has_flag, is_over = False, False
        shards = chain(*([view.shards[number]] * len(items) for number, items in by_shard.items()))
        each = zip(shards, chain(*by_shard.values()), chain(*answered), strict=True)
        for shard, item, (header, reply) in each:
            if isinstance(reply, ConnectionLost):
                lost.append(reply)
                if reply.sent:
                    self._doubtful.add(item)
            elif isinstance(reply, Exception):
                answer_of(reply, NEEDS)
            elif not view.descriptor.has_header(unflagged(header)):
                is_over = True
            else:
                has_flag |= says_forgotten(header)
                if shard.chain is not None:
                    shard.chain.learn(header)
                if reply is not None:
                    self._take(view, item, reply)
        if is_over:
            return None
        if has_flag and view.forgotten is None:
            self._note_versions(view)
            # What is left is asked for by versions.
            return None if self._left else lost
        return lost

    def _by_shard(self, view: View) -> dict[int, list[bytes]]:
        """Return what is left, by shard."""
        by_shard: dict[int, list[bytes]] = {}
        for item in self._left:
            by_shard.setdefault(view.hasher.locate(item)[0], []).append(item)
        return by_shard

    def _words(self, view: View, item: bytes, hashes: Sequence[int]) -> list[bytes]:
        """Return the part of the script's arguments that is for an item."""
        forgotten, hasher = view.forgotten, view.hasher
        identity = hasher.identify(item)
        believed = forgotten.version_of(identity) if forgotten is not None else b""
        version = self._versions.setdefault(item, new_version())
        now = hasher.relocate(identity, believed) if believed else hasher.locate(item)[1]
        later = hasher.relocate(identity, version)
        packed = (_packed(view, places, len(hashes)) for places in (now, later))
        return [identity, believed, version, *packed]

    def _note_versions(self, view: View) -> None:
        """Go by what was forgotten, first of all here."""
        now = self._state.note_forgetting(view)
        if now.forgotten is not None and now.header == view.header:
            for item, answer in self._answers.items():
                if answer:
                    now.forgotten.learn(view.hasher.identify(item), self._versions[item])

    def _take(self, view: View, item: bytes, reply: Any) -> None:
        """Take the reply about one item."""
        version, identity = self._versions[item], view.hasher.identify(item)
        self._tries[item] += 1
        if reply in (_FORGOTTEN, _ABSENT):
            if reply == _FORGOTTEN and view.forgotten is not None:
                view.forgotten.learn(identity, version)
            self._answer(item, reply == _FORGOTTEN)
            return
        if reply == _TAKEN:
            if self._tries[item] > VERSIONS_TRIED:
                raise CapacityError(
                    f"filter {self._state.keys.name!r} is so full that no item can be forgotten: "
                    "nearly all of its bits are set; clear it, or make a larger one"
                )
            del self._versions[item]
            return
        was_in_force, found = reply[:1] == b"1", reply[1:]
        if was_in_force and item in self._doubtful:
            # The try that was lost forgot it, and another client did since.
            self._answer(item, True)
            return
        if was_in_force:
            del self._versions[item]
        elif item in self._doubtful and self._is_long_ago(view):
            raise BloomlockError("the slices that would say whether it was forgotten are over")
        if view.forgotten is not None:
            view.forgotten.learn(identity, found)


def _header_bytes(view: View) -> bytes:
    """Return the header of a view's generation as the script takes it."""
    return view.header.to_bytes(HEADER_BYTES, "big")


def _hashes(view: View, shard: Shard) -> Sequence[int]:
    """Return how many bits an item has in each slice of a shard, as far as this object knows."""
    if shard.chain is None:
        return (view.hasher.num_hashes,)
    return shard.chain.hasher.hashes[: shard.chain.count]


def _expected(view: View, hashes: Sequence[int]) -> bytes:
    """Return the script's first argument."""
    window = view.descriptor.window
    kind = b"s" + bytes(hashes) if window is None else b"w" + packed_window(window)
    return _header_bytes(view) + kind


def _packed(view: View, places: Sequence[int], slices: int) -> bytes:
    """Return the offsets of an item, or of what stands for it in a filter that grows."""
    hasher, window = view.hasher, view.descriptor.window
    if isinstance(hasher, Chained):
        places = hasher.offsets(cast("bytes", places), slices)
    if window is not None:
        places = bits_of_cells(window.cell_bits, places)
    return struct.pack(f">{len(places)}I", *places)


def _call(
    shard: Shard, expected: bytes, asked: Sequence[Sequence[bytes]]
) -> Core[list[tuple[int, Any]]]:
    """Run the script for items of one shard; for each the header and the reply, or an error."""
    bits = len(asked[0][3]) // 4
    size = max(1, BITS_PER_CALL // bits)
    keys = [shard.key, forgotten_key(shard.key)]
    parts = [asked[start : start + size] for start in range(0, len(asked), size)]
    calls: list[Call] = [
        (keys, [expected, len(part), *(word for one in part for word in one)]) for part in parts
    ]
    answers: list[tuple[int, Any]] = []
    replies = yield from _SCRIPT.call(calls, repeatable=False)
    for part, reply in zip(parts, replies, strict=True):
        if isinstance(reply, Exception):
            answers += [(0, reply)] * len(part)
            continue
        found, *each = reply
        answers += [(header_from_bytes(found), one) for one in each or [None] * len(part)]
    return answers
