"""The race that cannot go well without a lock, whatever the machine does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from bloomlock import LockStrategy
from bloomlock.strategies.lock import _Update
from bloomlock.strategies.setbit import PipelineStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy import Verdict

    from bloomlock.effects import Core
    from bloomlock.keys import LockKeys


def lock_strategy(factory: Callable[[str], Any], *, pieces: bool) -> LockStrategy:
    """Return the strategy under test; with `pieces` its update is not atomic by itself.

    LockStrategy sets the bits in one transaction, so the answers would be exact if the foreign
    lock did nothing at all. What that lock does shows in an update that needs it.
    """
    return (_LockStrategyInPieces if pieces else LockStrategy)(factory, timeout=90)


class _LockStrategyInPieces(LockStrategy):
    def _under_foreign_locks(self, update: _Update, factory: Callable[[str], Any]) -> Core[None]:
        update.__class__ = _UpdateInPieces
        return super()._under_foreign_locks(update, factory)


class _UpdateInPieces(_Update):
    def carry_out(self, locks: list[LockKeys]) -> Core[None]:
        for keys in locks:
            for index in self._places[keys]:
                row = self._rows[index : index + 1]
                (self.results[index],) = yield from PipelineStrategy().many(
                    self._shard, row, write=True
                )
        self.waiting.difference_update(locks)


class HalfWay:
    """Stops one client in the middle of each item until the other has sent all bits of it.

    Without a lock both find bits that are 0, if an update is in pieces. Its methods are what two
    Proxy ask.

    Args:
        bits: Bits of an item.
        items: How many items both add, in the same order.
        patience: Seconds after which a client goes on though the other does not come.

    Attributes:
        met: How many items the other came in on while the one was stopped.
    """

    def __init__(self, bits: int, items: int, patience: float) -> None:
        self.met = 0
        self._bits = bits
        self._patience = patience
        self._half = [threading.Event() for _ in range(items)]
        self._done = [threading.Event() for _ in range(items)]
        self._sent = [0, 0]

    def stopped(self, name: str, _number: int) -> Verdict:
        """Judge the commands of the client that stops."""
        if name == "SETBIT":
            item, bit = divmod(self._sent[0], self._bits)
            self._sent[0] += 1
            if bit == self._bits // 2:
                self._half[item].set()
                if not self._done[item].is_set():
                    self.met += self._done[item].wait(self._patience)
        return "pass"

    def passing(self, name: str, _number: int) -> Verdict:
        """Judge the commands of the client that comes while the other is stopped."""
        item, bit = divmod(self._sent[1], self._bits)
        if bit == 0 and item > 0:
            self._done[item - 1].set()
        if name == "SETBIT":
            if bit == 0:
                self._half[item].wait(self._patience)
            self._sent[1] += 1
        return "pass"
