"""The tables of versions beside the shards, as wholes: copied, read, written, and compared.

A table is read before the bits of its shard. Then the bits have all that its versions stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.keys import forgotten_key

from .versions import IDENTITY_BYTES, RECORD_BYTES, encode_table, times_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

VERSIONS_PER_COMMAND = 1000
PREPARED_SECONDS = 24 * 3600
"""How long what is prepared outlives a client that dies; each write begins it anew."""
COUNT = b"count"
"""The field that says how often an item was forgotten."""


def copy_table(source: Shard, prepared: str) -> Core[None]:
    """Copy the versions of forgotten items beside the shard that is prepared at a key.

    There is a table even if no item of this shard was forgotten: one that is missing was lost.
    """
    copied = forgotten_key(prepared)
    expiry = encode_command("EXPIRE", copied, PREPARED_SECONDS)
    empty = encode_command("HSET", copied, COUNT, 0)
    yield from ask(copied, encode_command("UNLINK", copied), empty, expiry)
    cursor = 0
    while True:
        cursor, found = yield from _scan(source.key, cursor)
        if found:
            yield from ask(copied, encode_command("HSET", copied, *found), expiry)
        if not cursor:
            return


def read_table(key: str) -> Core[bytes]:
    """Return the table beside the shard at a key, as a file has it; round trips of 1,000 items."""
    table: dict[bytes, bytes] = {}
    cursor = 0
    while True:
        cursor, found = yield from _scan(key, cursor)
        # What HSCAN returns twice may have had two versions; the later one counts.
        table.update(zip(found[::2], found[1::2], strict=True))
        if not cursor:
            return encode_table(int(table.pop(COUNT, b"0")), table)


def write_table(key: str, start: int, data: bytes | memoryview) -> Core[None]:
    """Write a part of a table beside the shard that is prepared at a key; may be repeated.

    Args:
        key: Of the shard.
        start: The first byte of the table that the part has.
        data: The part, as a file has it.
    """
    table = forgotten_key(key)
    commands = []
    if not start:
        commands.append(encode_command("HSET", table, COUNT, times_in(data)))
    for records in _in_commands(start, data):
        fields = []
        for record in records:
            fields += [record[:IDENTITY_BYTES], record[IDENTITY_BYTES:]]
        commands.append(encode_command("HSET", table, *fields))
    yield from ask(table, *commands, encode_command("EXPIRE", table, PREPARED_SECONDS))


def is_as_written(key: str, start: int, data: bytes | memoryview) -> Core[bool]:
    """Return whether a part of a table that was written is still there as a file has it."""
    table = forgotten_key(key)
    asked = list(_in_commands(start, data))
    count, *replies = yield from ask(
        table,
        encode_command("HGET", table, COUNT),
        *(
            encode_command("HMGET", table, *(record[:IDENTITY_BYTES] for record in records))
            for records in asked
        ),
    )
    versions = [[record[IDENTITY_BYTES:] for record in records] for records in asked]
    # How often an item was forgotten is in the first part alone.
    return replies == versions and bool(start or count == b"%d" % times_in(data))


def _scan(key: str, cursor: int) -> Core[tuple[int, list[bytes]]]:
    """Return the next cursor, 0 at the end, and some fields and values of a table by turns."""
    table = forgotten_key(key)
    scan = encode_command("HSCAN", table, cursor, "COUNT", VERSIONS_PER_COMMAND)
    ((next_cursor, found),) = yield from ask(table, scan)
    return int(next_cursor), found


def _in_commands(start: int, data: bytes | memoryview) -> Iterator[list[bytes]]:
    """Yield the records of a part of a table in lists that one command may have."""
    first = 0 if start else RECORD_BYTES
    size = VERSIONS_PER_COMMAND * RECORD_BYTES
    for begin in range(first, len(data), size):
        some = bytes(data[begin : begin + size])
        yield [some[at : at + RECORD_BYTES] for at in range(0, len(some), RECORD_BYTES)]
