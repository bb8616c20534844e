"""What else a process can keep its items in: rbloom's filter, written in Rust, or a set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import mmh3

from . import base

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.place import Place


def _lasting(item: str) -> int:
    """Hash as bloomlock does; Python's own hash is another one in every process."""
    return mmh3.hash128(item, signed=True)


class Contender(base.Contender):
    """Something with `add`, `update`, `clear` and `in`, none of which answers what is new.

    Args:
        place: Its size.
        kind: "rbloom" with Python's hash, "rbloom-mmh3" with one that can be stored, or "set".
    """

    def __init__(self, place: Place, *, kind: Literal["rbloom", "rbloom-mmh3", "set"]) -> None:
        """Make it."""
        self._made: Any = _MAKERS[kind](place)

    def add(self, item: str) -> bool:
        """See base."""
        made = self._made
        if item in made:
            return False
        made.add(item)
        return True

    def exists(self, item: str) -> bool:
        """See base."""
        return item in self._made

    def update(self, items: Sequence[str]) -> None:
        """See base."""
        self._made.update(items)

    def clear(self) -> None:
        """See base."""
        self._made.clear()


def _rbloom(place: Place) -> Any:
    from rbloom import Bloom  # noqa: PLC0415 - may not be installed

    return Bloom(place.capacity, place.error_rate)


def _rbloom_mmh3(place: Place) -> Any:
    from rbloom import Bloom  # noqa: PLC0415 - may not be installed

    return Bloom(place.capacity, place.error_rate, hash_func=_lasting)


_MAKERS: dict[str, Callable[[Place], Any]] = {
    "rbloom": _rbloom,
    "rbloom-mmh3": _rbloom_mmh3,
    "set": lambda _: set(),
}
