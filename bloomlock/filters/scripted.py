"""A script of the caller's in which items are tested and added, one atomic step with the rest."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bloomlock.descriptor import HEADER_BYTES
from bloomlock.effects import ConnectionLost, is_missing
from bloomlock.errors import ConfigurationError
from bloomlock.hashing import encode_items
from bloomlock.scripts import Script

from .claims import refuse_full, refuse_strategy
from .state import in_one_generation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bloomlock.effects import Core

    from .claim_session import Item
    from .generation import View
    from .state import FilterState

SCRIPTS_KEPT = 64


def run_script(
    state: FilterState,
    script: str,
    items: Iterable[Item],
    keys: Sequence[str],
    arguments: Sequence[Item | int],
) -> Core[Any]:
    """Run a script beside the shards of some items, in the generation attached to."""
    refuse_strategy(state, "scripts")
    made = _made(_check_text("script", script))
    words = [_check_text("a key", key) for key in keys]
    given = list(items)
    encoded = encode_items(given)

    def work(view: View) -> Core[list[Any] | None]:
        yield from refuse_full(state, view, given)
        shards, head = _head(view, encoded)
        call = ([*shards, *words], (*head, *arguments))
        (reply,) = yield from made.call([call], repeatable=True)
        return _read(reply)

    reply = yield from in_one_generation(state, work)
    if given and state.view is not None and state.fill.due(len(given)):
        yield from state.fill.look_after_add(state.view)
    return reply[0] if reply else None


@lru_cache(SCRIPTS_KEPT)
def _made(text: str) -> Script:
    return Script("scripted", "scripted_end", body=text)


def _head(view: View, encoded: Sequence[bytes]) -> tuple[list[str], list[bytes | int]]:
    """Return the shards of items, and the arguments that say where their bits are."""
    # Without items the first shard says which generation it is, and which server.
    numbers: dict[int, int] = {} if encoded else {0: 1}
    which, places = [], []
    for data in encoded:
        shard, offsets = view.hasher.locate(data)
        which.append(numbers.setdefault(shard, len(numbers) + 1))
        places.append(struct.pack(f">{len(offsets)}I", *offsets))
    shards = [view.shards[number].key for number in numbers]
    return shards, [
        len(shards),
        view.header.to_bytes(HEADER_BYTES, "big"),
        4 * view.hasher.num_hashes,
        struct.pack(f">{len(which)}H", *which),
        b"".join(places),
    ]


def _read(reply: list[Any] | Exception) -> list[Any] | None:
    """Return what the script returned, in a list; None where the filter is another one."""
    if isinstance(reply, ConnectionLost):
        raise reply.cause from None
    if isinstance(reply, Exception) and is_missing(reply):
        raise ConfigurationError(
            f"a script needs a server that runs scripts for this client; it answered {reply}"
        ) from reply
    if isinstance(reply, Exception):
        raise reply
    done, *returned = reply
    if not done:
        return None
    for one in returned:
        if isinstance(one, Exception):
            raise one
    return returned


def _check_text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text, not {value!r:.80}")
    return value
