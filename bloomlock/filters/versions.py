"""The versions of forgotten items, as an object and a file know them; see forgotten.py. Pure."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

IDENTITY_BYTES = 16
VERSION_BYTES = 6
RECORD_BYTES = IDENTITY_BYTES + VERSION_BYTES
"""Bytes of an item in the table of a file."""
_NUMBER_BYTES = 8
NO_VERSION = bytes(VERSION_BYTES)
VERSIONS_KEPT = 10_000
"""Versions that an object knows at most; it asks once more for an item whose version it dropped."""


class KnownVersions:
    """What an object knows of the forgotten items of one generation; safe for threads.

    Attributes:
        is_everywhere: Whether all shards are known to have the flag.
    """

    def __init__(self) -> None:
        """Know of none."""
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
