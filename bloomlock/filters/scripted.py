"""A script of the caller's in which items are tested and added, one atomic step with the rest."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bloomlock.descriptor import HEADER_BYTES
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import encode_items
from bloomlock.keys import forgotten_key
from bloomlock.scripts import Script, answer_of
from bloomlock.strategies.cells import Turns, bits_of_cells, packed_window

from .claims import refuse_full, refuse_strategy
from .state import in_one_generation
from .versions import NO_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core

    from .claim_session import Item
    from .generation import View
    from .state import FilterState

SCRIPTS_KEPT = 64
_DONE, _FORGETS, _OTHER_VERSIONS, _BEHIND = 1, 2, 3, 4
"""What a script answers first; anything else: the filter is another one."""


def run_script(
    state: FilterState,
    script: str,
    items: Iterable[Item],
    keys: Sequence[str],
    arguments: Sequence[Item | int],
) -> Core[Any]:
    """Run a script beside the shards of some items, in the generation attached to."""
    if state.strategy.is_growing:
        raise ConfigurationError(
            "scripts are not possible with a filter that grows (on_full='grow'); filter "
            f"{state.keys.name!r} does"
        )
    refuse_strategy(state, "scripts")
    made = _made(_check_text("script", script))
    words = [_check_text("a key", key) for key in keys]
    given = list(items)
    encoded = encode_items(given)

    def work(view: View) -> Core[list[Any] | None]:
        yield from refuse_full(state, view, given)
        turns = Turns(view.descriptor.window, "a script")
        while True:
            keys, head = _head(state, view, encoded)
            call = ([*keys, *words], (*head, *arguments))
            (reply,) = yield from made.call([call], repeatable=True)
            how, *returned = _checked(answer_of(reply, "a script needs"))
            if how == _DONE:
                return returned
            if how == _BEHIND:
                behind = [
                    key for key, is_behind in zip(keys, returned, strict=False) if is_behind == b"1"
                ]
                yield from turns.make(behind, view.header)
                continue
            if how == _FORGETS:
                state.note_forgetting(view)
            if how != _OTHER_VERSIONS or view.forgotten is None:
                return None
            for data, version in zip(encoded, returned, strict=True):
                view.forgotten.learn(view.hasher.identify(data), version)

    reply = yield from in_one_generation(state, work)
    if given and state.view is not None and state.fill.due(len(given)):
        yield from state.fill.look_after_add(state.view)
    return reply[0] if reply else None


@lru_cache(SCRIPTS_KEPT)
def _made(text: str) -> Script:
    return Script("cells", "scripted", "scripted_end", body=text)


def _head(
    state: FilterState, view: View, encoded: Sequence[bytes]
) -> tuple[list[str], list[bytes | int]]:
    """Return the shards and tables of items, and the arguments that say where their bits are."""
    # Without items the first shard says which generation it is, and which server.
    numbers: dict[int, int] = {} if encoded else {0: 1}
    hasher, forgotten, window = view.hasher, view.forgotten, view.descriptor.window
    expected = view.header.to_bytes(HEADER_BYTES, "big")
    if window is not None:
        expected += packed_window(window, renews=state.options.refresh)
    which, places, items = [], [], []
    for data in encoded:
        shard, offsets = hasher.locate(data)
        which.append(numbers.setdefault(shard, len(numbers) + 1))
        if forgotten is not None:
            identity = hasher.identify(data)
            version = forgotten.version_of(identity)
            items.append(identity + (version or NO_VERSION))
            offsets = hasher.relocate(identity, version) if version else offsets
        if window is not None:
            offsets = bits_of_cells(window.cell_bits, offsets)
        places.append(struct.pack(f">{len(offsets)}I", *offsets))
    shards = [view.shards[number].key for number in numbers]
    tables = [] if forgotten is None else list(map(forgotten_key, shards))
    return [*shards, *tables], [
        len(shards),
        expected,
        4 * hasher.num_hashes,
        struct.pack(f">{len(which)}H", *which),
        b"".join(places),
        len(tables),
        b"".join(items),
    ]


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
