"""The versions of forgotten items, as an object knows them; see forgotten.py."""

from __future__ import annotations

import secrets

VERSION_BYTES = 6
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
