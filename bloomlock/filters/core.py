"""What a filter object knows, shared by its sync and its asyncio face."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bloomlock.descriptor import GENERATION_BITS, Descriptor, Wanted, header_of
from bloomlock.errors import ConfigurationError, FilterLostError
from bloomlock.runtime.forks import LockOwner
from bloomlock.strategies import BatchStrategies, make_strategy

from .attachment import attach
from .fill import FillWatch
from .near_cache import Asked
from .policies import OnLost, OnUnknown, choice, refuses
from .unreported import Unreported
from .view import View

if TYPE_CHECKING:
    from bloomlock.effects import Core
    from bloomlock.hashing import HashKey
    from bloomlock.keys import FilterKeys
    from bloomlock.strategies import Strategy

    from .near_cache import NearCache, NearCaching


ITEMS_PER_CHUNK = 2**18
"""Bounds the memory of a batch to about 200 MB."""

OWN_GENERATIONS = 64
"""How many of the generations that an object wrote last it knows for its own."""


def new_generation() -> int:
    """Return a generation that no other clear or creation will get; never 0."""
    return secrets.randbelow(2**GENERATION_BITS - 1) + 1


class FilterCore(LockOwner):
    """Parameters, policies and the current view of one filter object.

    Its lock is held when the view, why it is lost or our generations change; never while anything
    waits.

    Attributes:
        keys: The filter's keys.
        key: What the offsets depend on, as the caller gave it.
        strategy: How updates reach Redis.
        for_batches: The strategies that a batch may take in its place.
        items_per_chunk: Items of a batch that are worked on at once, at most.
        view: The generation attached to; None before the first use of an asyncio filter.
        lost: Why the view is no longer true (`on_lost="raise"` only), else None.
        unreported: Items added as new without a report; the next `add` of one returns "new". What
            puts items there calls `forget` after it.
        near: The positive answers kept for the view; None if none are, or none yet.
    """

    def __init__(
        self,
        keys: FilterKeys,
        wanted: Wanted | None,
        *,
        strategy: object,
        on_full: object,
        on_lost: object,
        on_unknown: object,
        caching: NearCaching | None = None,
        key: HashKey | None = None,
    ) -> None:
        """Check the policies; nothing is sent."""
        super().__init__()
        self.keys = keys
        self.wanted = wanted
        self.key = wanted.key if wanted is not None else key
        self.strategy: Strategy = make_strategy(strategy)
        self.for_batches = BatchStrategies(self.strategy)
        self.items_per_chunk = ITEMS_PER_CHUNK
        self.on_lost = choice("on_lost", on_lost, OnLost)
        self.on_unknown = choice("on_unknown", on_unknown, OnUnknown)
        self.fill = FillWatch(keys.name, refuse=refuses(on_full), clock=time.monotonic)
        self.view: View | None = None
        self.lost: str | None = None
        self.unreported = Unreported()
        self._own_headers: tuple[int, ...] = ()
        self.caching = caching
        self.near: NearCache | None = None

    @property
    def descriptor(self) -> Descriptor:
        """The parameters attached to, or, before that, those asked for."""
        if self.view is not None:
            return self.view.descriptor
        if self.wanted is not None:
            return self.wanted.describe()
        raise ConfigurationError(
            f"filter {self.keys.name!r} was not opened yet; await its attach()"
        )

    def sibling(self, keys: FilterKeys) -> FilterCore:
        """Return a core with the same policies that will open the filter at `keys`."""
        return FilterCore(
            keys,
            None,
            strategy=self.strategy,
            on_full="raise" if self.fill.refuse else "warn",
            on_lost=self.on_lost,
            on_unknown=self.on_unknown,
            caching=self.caching,
            key=self.key,
        )

    def attach(self) -> Core[View]:
        """Create the filter or attach to it as it is now, whatever was known before."""
        recreate = self.on_lost == "recreate"
        generation = self.own_generation()
        since = self.unreported.moment()
        try:
            descriptor = yield from attach(
                self.keys, self.wanted, generation, recreate=recreate, key=self.key
            )
        except Exception:
            # The view stays what it was, and what it was may be gone.
            self.forget()
            raise
        return (yield from self.adopt(descriptor, since))

    def adopt(self, descriptor: Descriptor, since: int) -> Core[View]:
        """Take `descriptor`, which was read or written after the moment `since`, for the truth."""
        descriptor = descriptor.with_key(self.key)
        view = View.of(self.keys, descriptor)
        if self.wanted is None:
            self.wanted = Wanted.of(descriptor)
        elif descriptor.key is not None and descriptor.key.stored:
            # Made anew by this object it keeps its key, and bits placed with that stay of use.
            self.wanted = replace(self.wanted, key=descriptor.key)
        with self._lock:
            self.view, self.lost = view, None
        self.unreported.attached(view.header, since)
        if self.caching is not None:
            self._near_of(view, self.caching)
        yield from self.fill.start(view)
        return view

    def own_generation(self) -> int:
        """Return a new generation, for this object to write."""
        generation = new_generation()
        with self._lock:
            self._own_headers = (*self._own_headers[1 - OWN_GENERATIONS :], header_of(generation))
        return generation

    def is_own(self, header: int) -> bool:
        """Tell whether this object wrote the generation of a header, or was about to.

        What one thread clears is no loss to the others.
        """
        return header in self._own_headers

    def lose(self, view: View, why: str) -> bool:
        """Note why a view is no longer true; False: it is not the object's view any more."""
        with self._lock:
            if self.view is not view:
                return False
            self.lost = why
        self.forget()
        return True

    def ask_near(self, view: View) -> Asked | None:
        """Return where an operation keeps its answers; to be called before it asks.

        Args:
            view: The view the operation goes by.

        Returns:
            None if answers are not kept.
        """
        if self.caching is None:
            return None
        return Asked(self._near_of(view, self.caching), self.caching.clock())

    def _near_of(self, view: View, caching: NearCaching) -> NearCache:
        near = self.near
        if near is not None and near.header == view.header and not near.ended:
            return near
        near = caching.start(view.header)
        if view is self.view and self.lost is None:
            self.near = near
            # Looked at again, because whoever replaces the view or finds it lost ends the cache
            # that was there before this one.
            if view is not self.view or self.lost is not None:
                near.end()
        return near

    def forget(self) -> None:
        """Keep none of the answers kept until now, nor those on their way."""
        if self.near is not None:
            self.near.end()

    def current(self) -> Core[View]:
        """Return the view to work with, attaching at the first use.

        Raises:
            FilterLostError: If an earlier operation found the filter lost and nobody called
                `reattach` since.
        """
        if self.lost is not None:
            raise FilterLostError(self.lost)
        if self.view is None:
            return (yield from self.attach())
        return self.view
