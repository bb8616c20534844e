"""One script call per update: header checked, bits tested and set, atomic as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.descriptor import HEADER_BYTES, header_from_bytes
from bloomlock.scripts import Script

from .base import Segment, Strategy, rows_per_command

if TYPE_CHECKING:
    from bloomlock.commands import Core

    from .base import Rows, Shard


class LuaStrategy(Strategy):
    """One round trip by EVALSHA; exact, and the only one that never writes to a lost filter."""

    name = "lua"

    def __init__(self) -> None:
        """Load the script's source."""
        self._script = Script("bits")

    def exchange(self, shard: Shard, rows: Rows, *, write: bool) -> Core[list[Segment]]:
        """See Strategy.exchange."""
        num_hashes = len(rows[0])
        size = rows_per_command(num_hashes)
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        header = shard.header.to_bytes(HEADER_BYTES, "big")
        opening = [header, "SETBIT" if write else "GETBIT", num_hashes]
        calls = [([shard.key], [*opening, *(o for row in group for o in row)]) for group in groups]
        replies = yield from self._script.call(calls, repeatable=not write)
        return [_segment(reply, len(group)) for reply, group in zip(replies, groups, strict=True)]


def _segment(reply: object, count: int) -> Segment:
    if not isinstance(reply, list):
        return Segment(count, error=reply if isinstance(reply, Exception) else TypeError(reply))
    header, *missing = reply
    flags = [bool(flag) for flag in missing] if missing else None
    return Segment(count, header_from_bytes(header), flags)
