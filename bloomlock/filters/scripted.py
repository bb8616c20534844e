"""A script of the caller's in which items are tested and added, one atomic step with the rest."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bloomlock.commands import Script, answer_of, check
from bloomlock.descriptor import header_bytes
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import check_items, encode_items
from bloomlock.keys import discards_key
from bloomlock.slices import DONE_BESIDE_TOMBSTONES, GROWN, OTHER

from .claims import refuse_full
from .state import in_one_generation
from .support import SCRIPTS, check_support

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

    from .generation import View
    from .state import FilterState

    Item = str | bytes

SCRIPTS_KEPT = 64
MOST_WORDS = 5000
"""Keys, or arguments: Lua takes less than 8,000 at once."""


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
    words = [_check_text("a key", key) for key in _check_few("keys", keys)]
    values = _check_few("args", arguments)
    for argument in values:
        if not isinstance(argument, (str, bytes, int, float)):
            raise ConfigurationError(
                f"an argument must be str, bytes or a number, not {argument!r:.80}"
            )
    check_items(items)
    given = list(items)
    encoded = encode_items(given)

    def work(view: View) -> Core[list[Any] | None]:
        yield from refuse_full(state, view, given)
        refreshes = state.options.refresh
        while True:
            shards, head = _head(view, encoded, refreshes=refreshes)
            keys = [shard.key for shard in shards]
            call = ([*keys, *map(discards_key, keys), *words], (*head, *values))
            (reply,) = yield from made.call([call], repeatable=True)
            how, *returned = check(answer_of(reply, "a script needs"))
            if how == DONE_BESIDE_TOMBSTONES and not view.discards:
                state.note_discards(view)
            if how != GROWN:
                return None if how == OTHER else returned
            number, count = returned
            shards[number - 1].slices.learn(count)

    reply = yield from in_one_generation(state, work)
    if given and state.view is not None and state.fill.due(len(given)):
        yield from state.fill.look_after_add(state.view)
    return reply[0] if reply else None


@lru_cache(SCRIPTS_KEPT)
def _made(text: str) -> Script:
    body = f"local function script(KEYS, ARGV, exists, add)\n{text}\nend\n"
    return Script("header", "slices", "scripted", body=body)


def _head(
    view: View, encoded: Sequence[bytes], *, refreshes: bool
) -> tuple[list[Shard], list[bytes | int]]:
    """Return the shards of items, and the arguments that say where their bits are."""
    hasher = view.hasher
    # Without items the first shard says which generation it is, and which server.
    places: dict[int, list[bytes]] = {} if encoded else {0: []}
    which = []
    for data in encoded:
        number = hasher.shard_of(data)
        packed = hasher.packed([data], view.shards[number].slices.count)
        places.setdefault(number, []).append(packed)
        which.append(struct.pack(">HI", 1 + list(places).index(number), len(places[number])))
    shards = [view.shards[number] for number in places]
    head: list[bytes | int] = [
        len(shards),
        header_bytes(view.header),
        b"r" if refreshes else b"",
        b"".join(which),
        b"".join(map(hasher.identify, encoded)),
    ]
    for shard, mine in zip(shards, places.values(), strict=True):
        head += [shard.slices.layout, b"".join(mine)]
    return shards, head


def _check_few(what: str, given: Iterable[Any]) -> list[Any]:
    if isinstance(given, (str, bytes)):
        raise ConfigurationError(f"{what} must be a list, not {given!r:.80}")
    if len(listed := list(given)) > MOST_WORDS:
        raise ConfigurationError(f"{what} must be {MOST_WORDS} at most, not {len(listed)}")
    return listed


def _check_text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text, not {value!r:.80}")
    return value
