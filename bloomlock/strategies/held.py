"""The versions by which the items of a filter with a time window are asked for; see forgotten.py.

There the bits of a version are wiped with their slices. So what a command said of them counts only
if the version was in force, and each request reads the table again before it reads or sets a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.keys import forgotten_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bloomlock.commands import Replies
    from bloomlock.effects import Writes

IDENTITIES_PER_COMMAND = 1000


class LateNew(Exception):  # noqa: N818 - an answer that depends on what is asked next
    """In place of an answer: the item is new, if it was never forgotten.

    Attributes:
        header: The shard's.
    """

    def __init__(self, header: int) -> None:
        super().__init__("an item was added too late by a client that had not heard of versions")
        self.header = header


class Held:
    """The versions of some rows: those that they are asked by, and those that they had.

    A row that is not asked for again keeps the version of the request that answered it: by the next
    one the table may be that of another generation.

    Args:
        key: Of the shard.
        identities: What stands for each row in the table.
        versions: Those by which the rows are asked for.

    Attributes:
        commands: What reads the table.
        settled: Rows whose answers count, whatever versions they have.
    """

    def __init__(self, key: str, identities: Sequence[bytes], versions: Sequence[bytes]) -> None:
        self.settled: set[int] = set()
        self._key = key
        self._identities = identities
        self._versions = versions
        self._found: list[bytes | Exception] = list(versions)
        self._rows: Sequence[int] = range(len(identities))
        self.commands = read_versions(key, identities)

    def ask_for(self, rows: Sequence[int]) -> None:
        """Say which rows the next request is about, of those of the last one."""
        if len(rows) < len(self._rows):
            self._rows = rows
            self.commands = read_versions(self._key, [self._identities[row] for row in rows])

    def take(self, replies: Replies) -> Replies:
        """Take the versions from the replies to a request; return the rest."""
        count = len(self.commands)
        versions = versions_in(replies[:count], len(self._rows))
        for row, version in zip(self._rows, versions, strict=True):
            self._found[row] = version
        return replies[count:]

    def found(self, row: int) -> bytes | Exception:
        """Return the version that a row had at the last request that was about it."""
        return self._found[row]

    def has(self, row: int) -> bool:
        """Return whether that is the one by which it is asked for."""
        return self._found[row] == self._versions[row]


class Preceded:
    """Writes with some commands before them."""

    def __init__(self, commands: Sequence[bytes], writes: Writes) -> None:
        self._commands = commands
        self._writes = writes

    def __len__(self) -> int:
        return len(self._commands) + len(self._writes)

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        for command in self._commands:
            yield [command]
        yield from self._writes


def read_versions(key: str, identities: Sequence[bytes]) -> list[bytes]:
    """Return the commands that read the versions of items of the shard at a key."""
    table = forgotten_key(key)
    starts = range(0, len(identities), IDENTITIES_PER_COMMAND)
    return [
        encode_command("HMGET", table, *identities[start : start + IDENTITIES_PER_COMMAND])
        for start in starts
    ]


def versions_in(read: Replies, count: int) -> list[bytes | Exception]:
    """Return the versions of items, or errors, from the replies to `read_versions`.

    Args:
        read: They.
        count: Of the items.
    """
    versions: list[bytes | Exception] = []
    for reply in read:
        if isinstance(reply, list):
            versions += [value or b"" for value in reply]
        else:
            missing = min(IDENTITIES_PER_COMMAND, count - len(versions))
            versions += [reply if isinstance(reply, Exception) else TypeError(reply)] * missing
    return versions
