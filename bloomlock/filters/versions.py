"""The versions of forgotten items: what an object knows of them, and their tables as wholes.

A table stands beside each shard, and in files. It is read before the bits of its shard: then the
bits have all that its versions stand for. How items are asked for is in forgotten.py.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.keys import forgotten_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bloomlock.effects import Core
    from bloomlock.strategies import Shard

IDENTITY_BYTES = 16
VERSION_BYTES = 6
RECORD_BYTES = IDENTITY_BYTES + VERSION_BYTES
"""Bytes of an item in the table of a file."""
_NUMBER_BYTES = 8
NO_VERSION = bytes(VERSION_BYTES)
VERSIONS_KEPT = 10_000
"""Versions that an object knows at most; it asks once more for an item whose version it dropped."""
VERSIONS_PER_COMMAND = 1000
PREPARED_SECONDS = 24 * 3600
"""How long what is prepared outlives a client that dies; each write begins it anew."""
COUNT = b"count"
"""The field that says how often an item was forgotten."""


class KnownVersions:
    """What an object knows of the forgotten items of one generation; safe for threads.

    Attributes:
        is_everywhere: Whether all shards are known to have the flag.
    """

    def __init__(self) -> None:
        self.is_everywhere = False
        self._versions: dict[bytes, bytes] = {}

    def version_of(self, identity: bytes) -> bytes:
        """Return the version that an item had when the table was read last; empty: none."""
        return self._versions.get(identity, b"")

    def learn(self, identity: bytes, version: bytes) -> None:
        """Note the version that an item has."""
        if not version:
            self._versions.pop(identity, None)
            return
        if len(self._versions) >= VERSIONS_KEPT:
            self._versions = {}
        self._versions[identity] = version


def new_version() -> bytes:
    """Return a version that no item had."""
    return (secrets.randbelow(2 ** (8 * VERSION_BYTES) - 1) + 1).to_bytes(VERSION_BYTES, "big")


def encode_table(times: int, table: Mapping[bytes, bytes]) -> bytes:
    """Return the table of a shard as a file has it: a record of numbers, then one for each item.

    Args:
        times: How often an item of the shard was forgotten.
        table: The version of each identity.

    >>> encode_table(3, {b"i" * 16: b"v" * 6}).hex(" ", 8)
    '00000000 0000000100000000 0000000300000000 0000696969696969 6969696969696969 6969767676767676'
    """
    numbers = [number.to_bytes(_NUMBER_BYTES, "big") for number in (len(table), times)]
    head = b"".join(numbers).ljust(RECORD_BYTES, b"\0")
    return head + b"".join(identity + version for identity, version in table.items())


def table_bytes(head: bytes | memoryview) -> int:
    """Return the length of a table in a file that begins with these bytes."""
    return RECORD_BYTES * (1 + int.from_bytes(head[:_NUMBER_BYTES], "big"))


def times_in(head: bytes | memoryview) -> int:
    """Return how often an item was forgotten, from the first bytes of a table in a file."""
    return int.from_bytes(head[_NUMBER_BYTES : 2 * _NUMBER_BYTES], "big")


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
