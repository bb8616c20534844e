"""What every contender can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Contender(ABC):
    """Something that is offered items; the wrapper costs the same for all of them."""

    @abstractmethod
    def add(self, item: str) -> bool:
        """Add an item; True if it is new."""

    @abstractmethod
    def exists(self, item: str) -> bool:
        """Return whether an item was added."""

    def add_many(self, items: Sequence[str]) -> list[bool]:
        """Add many items; one by one where the contender has nothing better."""
        return [self.add(item) for item in items]

    def exists_many(self, items: Sequence[str]) -> list[bool]:
        """Test many items; one by one where the contender has nothing better."""
        return [self.exists(item) for item in items]

    def update(self, items: Sequence[str]) -> None:
        """Add many items and ask for no answers, where that is cheaper."""
        self.add_many(items)

    @abstractmethod
    def clear(self) -> None:
        """Forget all items."""


class AsyncContender(ABC):
    """The same for asyncio, with one client for all tasks of the process."""

    @abstractmethod
    async def add(self, item: str) -> bool:
        """Add an item; True if it is new."""

    @abstractmethod
    async def clear(self) -> None:
        """Forget all items."""
