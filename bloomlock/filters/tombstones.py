"""The sets of the tombstones of discarded items, as they are copied.

Bits are never unset, so an item is discarded by a tombstone: its identity (16 bytes) in a set
beside its shard. The header of the shard has a flag while there is such a set. A tombstone is made
only when all bits of its item are set, and within a generation they stay set.

The set has one more member, the sentinel: the header of its generation without flags. It is made
by the script that sets the flag, and no script makes a set for a header that has the flag. So a set
without the sentinel is that of another generation, or it was evicted and had tombstones: then the
generation is broken, as if a shard were missing. What is read without the sentinel says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.delivery import ask
from bloomlock.descriptor import HEADER_BYTES
from bloomlock.hash_keys import DIGEST_BYTES
from bloomlock.keys import PREPARED_SECONDS, discards_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.effects import Core

IDENTITIES_PER_COMMAND = 1000
EPOCH_BYTES = 8


def sentinel(header: int) -> bytes:
    """Return the member that says of which generation a set is."""
    return header.to_bytes(HEADER_BYTES, "big")


def read_set(key: str, header: int, *, is_sorted: bool) -> Core[list[bytes] | None]:
    """Return the tombstones of the shard at a key: for each an identity and 8 bytes of its epoch.

    None if it is not the set of that generation. `is_sorted`: whether the filter has a window.
    """
    table = discards_key(key)
    found: dict[bytes, int] = {}
    cursor = 0
    while True:
        scan = encode_command(
            "ZSCAN" if is_sorted else "SSCAN", table, cursor, "COUNT", IDENTITIES_PER_COMMAND
        )
        ((next_cursor, some),) = yield from ask(table, scan)
        members, epochs = (some[::2], some[1::2]) if is_sorted else (some, [b"0"] * len(some))
        for member, epoch in zip(members, epochs, strict=True):
            if len(member) == DIGEST_BYTES:
                found[member] = int(float(epoch))
        cursor = int(next_cursor)
        if not cursor:
            break
    # Read last: a set that has it now was that of the generation before too.
    (is_whole,) = yield from ask(table, sentinel_command(key, header, is_sorted=is_sorted))
    if not is_whole:
        return None
    return [member + epoch.to_bytes(EPOCH_BYTES, "big") for member, epoch in found.items()]


def sentinel_command(key: str, header: int, *, is_sorted: bool) -> bytes:
    """Return the command that says whether the set of the shard at a key has its sentinel."""
    name = "ZSCORE" if is_sorted else "SISMEMBER"
    return encode_command(name, discards_key(key), sentinel(header))


def write_set(key: str, header: int, records: Sequence[bytes], *, is_sorted: bool) -> Core[None]:
    """Put records in the set of the shard that is prepared at a key; may be repeated."""
    table = discards_key(key)
    name, first = ("ZADD", ("+inf",)) if is_sorted else ("SADD", ())
    commands = [encode_command(name, table, *first, sentinel(header))]
    for start in range(0, len(records), IDENTITIES_PER_COMMAND):
        words: list[bytes | int] = []
        for record in records[start : start + IDENTITIES_PER_COMMAND]:
            words += [int.from_bytes(record[DIGEST_BYTES:], "big")] if is_sorted else []
            words.append(record[:DIGEST_BYTES])
        commands.append(encode_command(name, table, *words))
    yield from ask(table, *commands, encode_command("EXPIRE", table, PREPARED_SECONDS))
