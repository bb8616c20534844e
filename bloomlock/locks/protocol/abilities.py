"""What a server lets its client do; found by trying, once for each client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis.exceptions

if TYPE_CHECKING:
    from collections.abc import Iterator


class Abilities:
    """What the server of one client was found to allow.

    Attributes:
        scripts: Whether it runs scripts.
        compare_and_delete: Name of its command, or None.
    """

    def __init__(self) -> None:
        """Expect the best; see `missing_delete` for how the next is found."""
        self.scripts = True
        self._deletes: Iterator[str] = iter(("DELEX",))
        self.compare_and_delete: str | None = "DELIFEQ"

    def missing_delete(self) -> None:
        """Go on to the next compare-and-delete, or to none."""
        self.compare_and_delete = next(self._deletes, None)


def lacks_command(reply: object) -> bool:
    """Tell whether a reply says that this user or server has no such command.

    Other errors come and go, like those of a server that is failing over.
    """
    return isinstance(reply, redis.exceptions.NoPermissionError) or (
        isinstance(reply, redis.exceptions.ResponseError)
        and str(reply).lower().startswith(("unknown command", "syntax error"))
    )


def raise_error(reply: Any) -> Any:
    """Return a reply, or raise it if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply
