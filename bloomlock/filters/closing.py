"""A filter that is closed: it has its bits, and takes no updates, until another is in its place.

Closing gives all shards the header of a new generation, so no update of the last one is answered
any more. A client that attaches waits, and so does one that is attached. If the client that closed
the filter dies, the others open it again: it holds what it held.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from bloomlock.descriptor import CLOSED, HEADER_BYTES, READY, Descriptor, Replaced
from bloomlock.effects import (
    EXEC,
    MULTI,
    UNWATCH,
    ConnectionLost,
    Core,
    Pause,
    Request,
    is_missing,
    through_moves,
)
from bloomlock.errors import ConfigurationError
from bloomlock.parallel import in_parallel
from bloomlock.scripts import Script

from .contents import contents_of
from .storage import (
    WATCHED_TRIES,
    Changed,
    executed,
    look,
    look_and_watch,
    mark_ready,
    store_command,
)

if TYPE_CHECKING:
    from bloomlock.keys import FilterKeys

LOOKS = 300
LOOK_SECONDS = 0.1
"""How often, and after how long, a client that waits looks again before it opens the filter."""

_FENCE = Script("fence")


def close(keys: FilterKeys, stored: Descriptor, generation: int) -> Core[Descriptor]:
    """Close a filter; when it returns, no update of what was there is answered any more.

    Raises:
        Changed: If it is another generation by now.
    """
    closed = stored.with_generation(generation, CLOSED, cleared=stored.cleared)
    closed = replace(closed.successor_of(stored), replaces=Replaced.of(stored))
    yield from through_moves(keys.meta, partial(_store, keys, stored, closed))
    yield from _close_shards(keys, closed)
    return closed


def _store(keys: FilterKeys, stored: Descriptor, closed: Descriptor) -> Core[None]:
    for _ in range(WATCHED_TRIES):
        current = (yield from look_and_watch(keys)).descriptor
        found = None if current is None else (current.header, current.state)
        if found != (stored.header, READY):
            yield Request(keys.meta, [UNWATCH])
            if found == (closed.header, CLOSED):
                return  # by a try that was cut off
            break
        if executed((yield Request(keys.meta, [MULTI, store_command(keys, closed), EXEC]))):
            return
    raise Changed


def _close_shards(keys: FilterKeys, closed: Descriptor) -> Core[None]:
    placed = closed.place(keys)
    shards = range(closed.size.shards)
    yield from in_parallel([_close_shard(placed.bits(shard), closed) for shard in shards])


def _close_shard(key: str, closed: Descriptor) -> Core[None]:
    old = 0 if closed.replaces is None else closed.replaces.header
    headers = [header.to_bytes(HEADER_BYTES, "big") for header in (old, closed.header)]
    length = contents_of(closed).string_bytes(closed)
    (reply,) = yield from _FENCE.call([((key,), (*headers, length))], repeatable=True)
    if isinstance(reply, ConnectionLost):
        raise reply.cause from None
    if isinstance(reply, ResponseError) and is_missing(reply):
        raise ConfigurationError(
            f"rebuild() needs a server that runs scripts for this client; it answered {reply}"
        ) from reply
    if isinstance(reply, Exception):
        raise reply
    if not reply:
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
        current = (yield from look(keys)).descriptor
        if current is None or (current.header, current.state) != (closed.header, CLOSED):
            return
    yield from reopen(keys, closed)
