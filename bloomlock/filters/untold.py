"""Items that were added as new to a generation without anybody having been told so.

An add may be carried out in a generation that its caller is not attached to, and end in an error:
in FilterLostError, or because the way there could not be found. Whoever repeats it would be told
"seen" by his own first try, and the item would be dropped by everybody. So it is noted here, and
the next add of it in that generation is told "new". An update, which wants no answers, neither
leaves items here nor takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bloomlock.runtime.forks import LockOwner

if TYPE_CHECKING:
    from collections.abc import Iterable

ATTACHMENTS = 3
"""How often another generation is attached to before one is taken for gone. That is not certain
after the first time: a thread that was slow may attach to what another one found to be old."""


class Untold(LockOwner):
    """Encoded items by the header of the generation they were added to; safe for threads."""

    def __init__(self) -> None:
        """Start without any."""
        super().__init__()
        self._items: dict[int, set[bytes]] = {}
        self._passed_over: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._items)

    def __contains__(self, item: bytes) -> bool:
        """Tell whether the item is noted for any generation."""
        with self._lock:
            return any(item in items for items in self._items.values())

    def remember(self, header: int, items: Iterable[bytes]) -> None:
        """Note items that were added as new to the generation of a header."""
        with self._lock:
            self._items.setdefault(header, set()).update(items)
            if not self._items[header]:
                del self._items[header]

    def take(self, header: int, item: bytes) -> bool:
        """Tell whether the item is noted for that generation, to one caller only."""
        with self._lock:
            items = self._items.get(header)
            if items is None or item not in items:
                return False
            items.remove(item)
            if not items:
                del self._items[header]
            return True

    def attached(self, header: int) -> None:
        """Forget generations that have been passed over several times."""
        if not self._items:
            return
        with self._lock:
            times = {
                other: self._passed_over.get(other, 0) + 1
                for other in self._items
                if other != header
            }
            self._passed_over = times
            for other in [one for one, count in times.items() if count >= ATTACHMENTS]:
                del self._items[other], times[other]
