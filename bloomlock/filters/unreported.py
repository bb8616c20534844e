"""Items that were added as new to a generation without anybody having been told so.

An add may be carried out in a generation that its caller is not attached to, and end in an error:
in FilterLostError, or because the way there could not be found. Whoever repeats it would be told
"seen" by his own first try, and the item would be dropped by everybody. So it is noted here, and
the next add of it in that generation is told "new". An update, which wants no answers, neither
leaves items here nor takes them.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from bloomlock.runtime.forks import LockOwner

if TYPE_CHECKING:
    from collections.abc import Iterable


class Unreported(LockOwner):
    """Encoded items by the header of the generation they were added to; safe for threads."""

    def __init__(self) -> None:
        """Start without any."""
        super().__init__()
        self._items: dict[int, set[bytes]] = {}
        # When something was noted for a generation last, in the order of `moment`.
        self._noted: dict[int, int] = {}
        self._moments = count()

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
            if noted := set(items):
                self._items.setdefault(header, set()).update(noted)
                self._noted[header] = next(self._moments)

    def take(self, header: int, item: bytes) -> bool:
        """Tell whether the item is noted for that generation, to one caller only."""
        with self._lock:
            items = self._items.get(header)
            if items is None or item not in items:
                return False
            items.remove(item)
            if not items:
                del self._items[header], self._noted[header]
            return True

    def moment(self) -> int:
        """Return a number for now, larger than that of any moment before."""
        return next(self._moments)

    def attached(self, header: int, since: int) -> None:
        """Forget the generations that are over, as another one was found.

        A generation that was met before the other was looked for is over, and none returns. One
        that was met later may have followed the other: a thread that is slow attaches to what is
        old by then.

        Args:
            header: That of the generation attached to.
            since: The moment before it was looked for.
        """
        if not self._items:
            return
        with self._lock:
            for other in [one for one in self._items if one != header]:
                if self._noted[other] < since:
                    del self._items[other], self._noted[other]
