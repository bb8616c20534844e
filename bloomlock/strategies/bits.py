"""The single-bit commands that three strategies share. Pure.

https://redis.io/docs/latest/commands/setbit/ (answers the old bit), /getbit/, /getrange/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.commands import encode_command
from bloomlock.descriptor import HEADER_BYTES

if TYPE_CHECKING:
    from .base import Rows


def bit_commands(key: str, rows: Rows, write: bool) -> list[bytes]:
    """Return one SETBIT (or GETBIT) for each offset of each row."""
    command = encode_command("SETBIT" if write else "GETBIT", key)
    arguments = b"*4" if write else b"*3"
    fixed = (arguments + command[command.index(b"\r") :]).replace(b"%", b"%%")
    head = fixed + b"$%d\r\n%d\r\n"
    if write:
        head += b"$1\r\n1\r\n"
    return [head % (len(str(offset)), offset) for row in rows for offset in row]


def header_command(key: str) -> bytes:
    """Return the command that reads the header."""
    return encode_command("GETRANGE", key, 0, HEADER_BYTES - 1)
