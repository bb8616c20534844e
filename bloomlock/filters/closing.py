"""A filter that is closed: it has its bits, and takes no updates, until another is in its place.

Closing gives all shards the header of a new generation, so no update of the last one is answered
any more. A client that attaches waits, and so does one that is attached. If the client that closed
the filter dies, the others open it again: it holds what it held.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bloomlock.descriptor import CLOSED, HEADER_BYTES, READY, Descriptor
from bloomlock.effects import Core, Pause
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script, answer_of

from .contents import contents_of
from .stored_filter import Found, look
from .writing import Changed, mark_ready, store_command, write_watched

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys

LOOKS = 300
LOOK_SECONDS = 0.1
"""How often, and after how long, a client that waits looks again before it opens the filter."""

_FENCE = Script("header", "fence")


def close(keys: FilterKeys, stored: Descriptor, generation: int) -> Core[Descriptor]:
    """Close a filter; when it returns, no update of what was there is answered any more.

    Raises:
        Changed: If it is another generation by now.
    """
    closed = stored.with_generation(generation, CLOSED, cleared=stored.cleared)
    closed = replace(closed.successor_of(stored), replaces=stored.as_replaced)

    def decide(found: Found) -> list[bytes]:
        if found.has(closed.header, CLOSED):
            return []  # by a try that was cut off
        if not found.has(stored.header, READY):
            raise Changed
        return [store_command(keys, closed)]

    yield from write_watched(keys, decide)
    yield from _close_shards(keys, closed)
    return closed


def _close_shards(keys: FilterKeys, closed: Descriptor) -> Core[None]:
    shards = range(closed.size.shards)
    yield from in_parallel([_close_shard(keys.bits(shard), closed) for shard in shards])


def _close_shard(key: str, closed: Descriptor) -> Core[None]:
    old = 0 if closed.replaces is None else closed.replaces.header
    headers = [header.to_bytes(HEADER_BYTES, "big") for header in (old, closed.header)]
    length = contents_of(closed).string_bytes(closed)
    (reply,) = yield from _FENCE.call([((key,), (*headers, length))], repeatable=True)
    if not answer_of(reply, "rebuild() needs"):
        raise Changed(broken={closed.generation})


def reopen(keys: FilterKeys, closed: Descriptor) -> Core[None]:
    """Open a filter again as it was closed; may be repeated.

    Raises:
        Changed: If another client opened or replaced it meanwhile.
    """
    yield from _close_shards(keys, closed)
    yield from mark_ready(keys, closed)


def wait(keys: FilterKeys, closed: Descriptor) -> Core[None]:
    """Wait until a filter is not closed any more; open it if its client seems to be dead."""
    for _ in range(LOOKS):
        yield Pause(LOOK_SECONDS)
        if not (yield from look(keys)).has(closed.header, CLOSED):
            return
    yield from reopen(keys, closed)
