"""Commands in RESP, the protocol of Redis, and which of them end a transaction.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from redis.exceptions import ExecAbortError

if TYPE_CHECKING:
    from collections.abc import Sequence

Replies: TypeAlias = list[Any]
Command: TypeAlias = "bytes | Parts"


class Parts(tuple["bytes | memoryview", ...]):
    """One RESP-encoded command in parts; a `memoryview` among them is sent uncopied.

    What it shows must not change until all replies have come, nor later if they do not come.
    """

    __slots__ = ()


def encode_command(*arguments: str | bytes | int) -> bytes:
    r"""Return one command.

    >>> encode_command("GET", "a")
    b'*2\r\n$3\r\nGET\r\n$1\r\na\r\n'
    """
    return b"*%d\r\n%b" % (len(arguments), encode_arguments(*arguments))


def encode_arguments(*arguments: str | bytes | int) -> bytes:
    parts = []
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def encode_opening(num_more: int, *arguments: str | bytes | int) -> bytes:
    """Return a command up to its last arguments, of which there are `num_more`."""
    return b"*%d\r\n%b" % (len(arguments) + num_more, encode_arguments(*arguments))


def encode_large(name: str, key: str, large: memoryview, *rest: str | bytes | int) -> Parts:
    opening = b"*%d\r\n%b$%d\r\n" % (3 + len(rest), encode_arguments(name, key), len(large))
    return Parts((opening, large, b"\r\n" + encode_arguments(*rest)))


def join_commands(commands: Sequence[Command | memoryview]) -> list[bytes | memoryview]:
    joined: list[bytes | memoryview] = []
    small: list[bytes] = []
    for command in commands:
        for part in command if isinstance(command, Parts) else (command,):
            if isinstance(part, bytes):
                small.append(part)
            else:
                joined += (b"".join(small), part)
                small = []
    joined.append(b"".join(small))
    return joined


MULTI = encode_command("MULTI")
EXEC = encode_command("EXEC")
UNWATCH = encode_command("UNWATCH")


def ends_transaction(commands: Sequence[Command], replies: Replies) -> bool:
    """Return whether a connection has neither MULTI nor WATCH pending after these commands.

    An EXEC that is aborted ends them too. Any other error leaves open what has become of them.
    """
    for command, reply in zip(reversed(commands), reversed(replies), strict=True):
        if command == EXEC:
            return not isinstance(reply, Exception) or isinstance(reply, ExecAbortError)
        if command == UNWATCH:
            return not isinstance(reply, Exception)
    return False
