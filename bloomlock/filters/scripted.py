"""A script of the caller's in which items are tested and added, one atomic step with the rest."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from bloomlock.descriptor import HEADER_BYTES
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import encode_items
from bloomlock.keys import forgotten_key
from bloomlock.scripts import Script, answer_of
from bloomlock.shard_hashing import Chained
from bloomlock.strategies.cells import Turns, bits_of_cells, packed_window

from .claims import refuse_full
from .state import in_one_generation
from .support import SCRIPTS, check_support
from .versions import NO_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

    from .claim_session import Item
    from .generation import View
    from .state import FilterState

SCRIPTS_KEPT = 64
_DONE, _FORGETS, _OTHER_VERSIONS, _BEHIND, _GROWN = 1, 2, 3, 4, 5
"""What a script answers first; anything else: the filter is another one."""


def run_script(
    state: FilterState,
    script: str,
    items: Iterable[Item],
    keys: Sequence[str],
    arguments: Sequence[Item | int],
) -> Core[Any]:
    """Run a script beside the shards of some items, in the generation attached to."""
    check_support(SCRIPTS, state.strategy.name)
    made = _made(_check_text("script", script))
    words = [_check_text("a key", key) for key in keys]
    given = list(items)
    encoded = encode_items(given)

    def work(view: View) -> Core[list[Any] | None]:
        yield from refuse_full(state, view, given)
        turns = Turns(view.descriptor.window, "a script")
        while True:
            shards, tables, head = _head(state, view, encoded)
            call = ([*(shard.key for shard in shards), *tables, *words], (*head, *arguments))
            (reply,) = yield from made.call([call], repeatable=True)
            how, *returned = _checked(answer_of(reply, "a script needs"))
            if how == _DONE:
                return returned
            if how == _BEHIND:
                behind = [
                    one.key for one, each in zip(shards, returned, strict=True) if each == b"1"
                ]
                yield from turns.make(behind, view.header)
            elif how == _GROWN:
                _learn_slices(shards, returned)
            elif how == _OTHER_VERSIONS and view.forgotten is not None:
                for data, version in zip(encoded, returned, strict=True):
                    view.forgotten.learn(view.hasher.identify(data), version)
            else:
                if how == _FORGETS:
                    state.note_forgetting(view)
                return None

    reply = yield from in_one_generation(state, work)
    if given and state.view is not None and state.fill.due(len(given)):
        yield from state.fill.look_after_add(state.view)
    return reply[0] if reply else None


@lru_cache(SCRIPTS_KEPT)
def _made(text: str) -> Script:
    return Script("header", "cells", "scripted", "scripted_end", body=text)


def _head(
    state: FilterState, view: View, encoded: Sequence[bytes]
) -> tuple[list[Shard], list[str], list[bytes | int]]:
    """Return the shards and tables of items, and the arguments that say where their bits are."""
    hasher, window = view.hasher, view.descriptor.window
    located = [hasher.locate(data) for data in encoded]
    # Without items the first shard says which generation it is, and which server.
    numbers: dict[int, int] = {} if encoded else {0: 1}
    which = [numbers.setdefault(shard, len(numbers) + 1) for shard, _ in located]
    shards = [view.shards[number] for number in numbers]
    expected = view.header.to_bytes(HEADER_BYTES, "big")
    num_hashes, count = hasher.num_hashes, 1
    if window is not None:
        expected += b"w" + packed_window(window, renews=state.options.refresh)
    if isinstance(hasher, Chained):
        count = max(shard.chain.count for shard in shards if shard.chain is not None)
        hashes = hasher.hashes[:count]
        expected, num_hashes = expected + b"s" + bytes(hashes), sum(hashes)
    placed = [
        _place(view, data, offsets, count)
        for data, (_, offsets) in zip(encoded, located, strict=True)
    ]
    tables = [] if view.forgotten is None else [forgotten_key(shard.key) for shard in shards]
    head: list[bytes | int] = [
        len(shards),
        expected,
        4 * num_hashes,
        struct.pack(f">{len(which)}H", *which),
        b"".join(places for places, _ in placed),
        len(tables),
        b"".join(version for _, version in placed),
    ]
    return shards, tables, head


def _place(view: View, data: bytes, usual: Sequence[int], count: int) -> tuple[bytes, bytes]:
    """Return where the bits of an item are in `count` slices; and by which version, if any has one.

    `usual` is where they are without a version, and without slices.
    """
    hasher, forgotten, window = view.hasher, view.forgotten, view.descriptor.window
    offsets, by_version = usual, b""
    if forgotten is not None:
        identity = hasher.identify(data)
        version = forgotten.version_of(identity)
        by_version = identity + (version or NO_VERSION)
        offsets = hasher.relocate(identity, version) if version else offsets
    if isinstance(hasher, Chained):
        offsets = hasher.offsets(cast("bytes", offsets), count)
    if window is not None:
        offsets = bits_of_cells(window.cell_bits, offsets)
    return struct.pack(f">{len(offsets)}I", *offsets), by_version


def _learn_slices(shards: Sequence[Shard], counts: Sequence[int]) -> None:
    for shard, count in zip(shards, counts, strict=True):
        if shard.chain is not None:
            shard.chain.count = count


def _checked(reply: list[Any]) -> list[Any]:
    """Return the reply if no part of it is an error."""
    for one in reply:
        if isinstance(one, Exception):
            raise one
    return reply


def _check_text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text, not {value!r:.80}")
    return value
