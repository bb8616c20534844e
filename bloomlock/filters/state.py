"""What a filter object knows, shared by BloomFilter and AsyncBloomFilter."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from bloomlock.descriptor import DISCARDED, Descriptor, header_of, unflagged
from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
)
from bloomlock.keys import FilterKeys
from bloomlock.runtime.clock import boot_clock
from bloomlock.runtime.forks import LockOwner
from bloomlock.spec import RequestedSpec
from bloomlock.strategies import BatchStrategies

from .fill import FillWatch
from .generation import View, new_generation
from .growing import GrowthWatch
from .near_cache import Asked, KeptAnswers
from .stored_filter import look, look_at_shard
from .support import DISCARDS, check_support
from .switch import attach, clear, delete

if TYPE_CHECKING:
    from collections.abc import Callable

    from bloomlock.effects import Core
    from bloomlock.strategies import Strategy

    from .near_cache import NearCache
    from .options import FilterOptions

T = TypeVar("T")

ITEMS_PER_CHUNK = 2**18
"""Bounds the memory of a batch to about 200 MB."""

OWN_GENERATIONS = 64
"""How many of the generations that an object wrote last it knows for its own."""

TRIES = 3

UNANSWERED = 10_000
"""Items whose tokens are kept for another try, at most."""


class UnansweredTokens(LockOwner):
    """Tokens of claims that may have been granted without an answer; safe for threads.

    They are those of a process: a child of fork has no claims of its parent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[tuple[int, bytes], list[bytes]] = {}

    def keep(self, item: bytes, token: bytes) -> None:
        with self._lock:
            if len(self._tokens) < UNANSWERED:
                self._tokens.setdefault((os.getpid(), item), []).append(token)

    def take(self, item: bytes) -> bytes | None:
        """Return the oldest token of an item, once; None if there is none."""
        if not self._tokens:
            return None
        with self._lock:
            first, *rest = self._tokens.pop((os.getpid(), item), (None,))
            if rest:
                self._tokens[os.getpid(), item] = rest
            return first


class FilterState(LockOwner):
    """Parameters, policies and the current view of one filter object.

    Its lock is held when the view, why it is lost, our generations or the near-cache change; never
    while anything waits.

    Attributes:
        wanted: The parameters asked for; None for a filter that is attached to as it is.
        key: What the offsets depend on, as the caller gave it.
        strategy: How updates reach Redis.
        for_batches: The strategies that a batch may take in its place.
        route: The route that "auto" took last where there was a choice; empty: none yet.
        items_per_chunk: Items of a batch that are worked on at once, at most.
        view: The generation attached to; None before the first use of an asyncio filter.
        lost: Why the view is no longer true (`on_lost="raise"` only), else None.
        near: The positive answers kept for the view; None if none are, or none yet.
        near_clock: The clock by which these age.
        keeps_found: Whether items that are only found are kept in it, else those that are added. An
            add of a kept item is left out. Where adds renew items, it would have renewed one that
            was not added in the same epoch.
        flagged: The header of the generation in all of whose shards this object has set the flag of
            discards; 0: of none.
    """

    def __init__(
        self, keys: FilterKeys, options: FilterOptions, wanted: RequestedSpec | None
    ) -> None:
        super().__init__()
        self.keys = keys
        self.options = options
        self.wanted = wanted
        self.key = options.hash_key
        self.items_per_chunk = ITEMS_PER_CHUNK
        self.on_lost = options.on_lost
        self.on_unknown = options.on_unknown
        self.clock = time.monotonic
        self.route = ""
        self.set_up(wanted)
        self.view: View | None = None
        self.lost: str | None = None
        self.unanswered = UnansweredTokens()
        self._own_headers: tuple[int, ...] = ()
        self.caching = options.caching
        self.near_clock = boot_clock
        self.near: KeptAnswers | None = None
        self.keeps_found = not options.refresh
        self.flagged = 0

    @classmethod
    def of(cls, name: str, options: FilterOptions) -> FilterState:
        return cls(FilterKeys(name, options.prefix), options, options.wanted)

    def set_up(self, model: RequestedSpec | Descriptor | None) -> None:
        """Take the strategy and the watch of a filter with these parameters; None: a plain one."""
        options = self.options
        self.strategy = options.updates if model is None else options.strategy_for(model)
        self.fill = FillWatch(self.keys.name, refuse=options.refuses, clock=self.clock)
        if model is not None and model.growth:
            self.fill = GrowthWatch(self.keys, self.clock)
        self.for_batches = BatchStrategies(self.strategy)

    def strategy_in(self, view: View) -> Strategy:
        """Return what sends the items of a view: the script, where there may be tombstones."""
        return self.for_batches.script if view.discards else self.strategy

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

    # -- generations -------------------------------------------------------------------------------

    def attach(self, *, must_follow: bool = False) -> Core[View]:
        """Create the filter or attach to it as it is now, whatever was known before.

        With `must_follow` only what has all items of the view's generation will do.
        """
        try:
            yield from self.strategy.check_server(self.keys.meta)
            descriptor = yield from attach(
                self.keys,
                self.wanted,
                self.own_generation,
                recreate=self.on_lost == "recreate",
                key=self.key,
                check=self._check_filter,
                before=None if self.view is None else self.view.descriptor,
                must_follow=must_follow,
            )
        except Exception:
            # The view stays what it was, and what it was may be gone.
            self.forget()
            raise
        return (yield from self._adopt(descriptor))

    def _check_filter(self, stored: Descriptor) -> None:
        self.strategy.check_filter(self.keys.name, stored)

    def _adopt(self, descriptor: Descriptor) -> Core[View]:
        """Take `descriptor`, as it was read or written, for the truth."""
        descriptor = descriptor.with_key(self.key)
        if self.wanted is None:
            if self.options.on_full == "grow" and not descriptor.growth:
                raise FilterMismatchError(
                    f"filter {self.keys.name!r} does not grow, so on_full must be 'warn' or "
                    "'raise', not 'grow'"
                )
            if descriptor.slices:
                self.set_up(descriptor)
                yield from self.strategy.check_server(self.keys.meta)
        if descriptor.discards:
            check_support(DISCARDS, self.strategy.name)
        view = View.of(self.keys, descriptor)
        follows = self.view is not None and descriptor.continues(self.view.descriptor)
        if self.wanted is None or follows:
            self.wanted = RequestedSpec.of(descriptor)
        elif descriptor.key is not None and descriptor.key.stored:
            # A filter that this object creates again keeps its key, and bits placed with it hold.
            self.wanted = replace(self.wanted, key=descriptor.key)
        with self._lock:
            self.view, self.lost = view, None
        if self.caching is not None:
            self._near_of(view, self.caching)
        yield from self.fill.start(view)
        return view

    def clear(self) -> Core[None]:
        """Empty the filter for all clients, keep its parameters, and attach to it again."""
        own = None if self.view is None and self.wanted is None else self.descriptor
        try:
            descriptor = yield from clear(
                self.keys, own, self.own_generation, self.key, self._check_filter
            )
        finally:
            # Whatever the outcome, this object gives no answer from before.
            self.forget()
        yield from self._adopt(descriptor)

    def delete(self) -> Core[bool]:
        """Delete the filter; True if there was one."""
        try:
            own = None if self.view is None else self.view.descriptor
            return (yield from delete(self.keys, own))
        finally:
            self.forget()

    def note_discards(self, view: View) -> View:
        """Go by tombstones, as a shard of a view's generation says that there are discarded items.

        Returns:
            The object's view, which is of another generation if another thread attached to one.
        """
        # Kept answers lasted as long as no header had the flag.
        self.forget()
        check_support(DISCARDS, self.strategy.name)
        with self._lock:
            if self.view is None or self.view is view:
                self.view = replace(view, expected=view.header | DISCARDED)
            return self.view

    def own_generation(self) -> int:
        """Return a new generation, for this object to write."""
        generation = new_generation()
        with self._lock:
            self._own_headers = (*self._own_headers[1 - OWN_GENERATIONS :], header_of(generation))
        return generation

    def is_own(self, header: int) -> bool:
        """Return whether this object wrote the generation of a header, or was about to.

        What one thread clears is no loss to the others.
        """
        return unflagged(header) in self._own_headers

    def lose(self, view: View, why: str) -> bool:
        """Note why a view is no longer true; False: it is not the object's view any more."""
        with self._lock:
            if self.view is not view:
                return False
            self.lost = why
        self.forget()
        return True

    def current(self) -> Core[View]:
        """Return the view to work with, attaching at the first use.

        Raises:
            FilterLostError: If an earlier operation found the filter lost and `reattach` was not
                called since.
        """
        if self.lost is not None:
            raise FilterLostError(self.lost)
        if self.view is None:
            return (yield from self.attach())
        return self.view

    # -- kept answers ------------------------------------------------------------------------------

    def ask_near(self, view: View) -> Asked | None:
        """Return where an operation that goes by a view keeps its answers; None: it keeps none.

        To be called before it asks.
        """
        if self.caching is None:
            return None
        return Asked(self._near_of(view, self.caching), self.near_clock())

    def _near_of(self, view: View, caching: NearCache) -> KeptAnswers:
        with self._lock:
            near = self.near
            if near is not None and near.header == view.expected and not near.is_over:
                return near
            lasts = not (view.discards or view.descriptor.window)
            made = KeptAnswers(view.expected, caching, self.near_clock, lasts=lasts)
            if view is self.view and self.lost is None:
                self.near = made
                if near is not None:
                    # An operation that has it still may be answered in another epoch.
                    near.end()
        return made

    def forget(self) -> None:
        """Keep none of the answers kept until now, nor those on their way."""
        if self.near is not None:
            self.near.end()


def in_one_generation(state: FilterState, work: Callable[[View], Core[T | None]]) -> Core[T]:
    """Do the work in the generation attached to, or in the next where the filter may be followed.

    Args:
        state: The filter.
        work: Makes the core of the work; its result is None if it met another generation, or noted
            of discarded items (`note_discards`).

    Raises:
        FilterLostError: If the filter was cleared or lost and `on_lost="raise"`, or repeatedly.
    """
    view = yield from state.current()
    for _ in range(TRIES):
        try:
            done = yield from work(view)
        except Exception:
            if state.near is not None:
                state.near.doubt()
            raise
        if done is not None:
            return done
        now = state.view
        if now is not None and now is not view and now.header == view.header and not state.lost:
            # It has heard of discarded items.
            view = now
        else:
            view = yield from follow(state, view)
    raise _lost(state, view)


def follow(state: FilterState, view: View) -> Core[View]:
    """Return the view of the generation that came after that of a view, if it may be followed.

    Raises:
        FilterLostError: If it may not, with `on_lost="raise"`.
    """
    if state.on_lost == "recreate" or state.view is not view:
        return (yield from state.attach())
    header, _ = yield from look_at_shard(state.keys, 0)
    if not view.descriptor.has_header(header):
        if state.is_own(header):
            return (yield from state.attach())
        stored = yield from look_for_another(state.keys)
        if stored is not None and stored.continues(view.descriptor):
            return (yield from state.attach(must_follow=True))
    raise _lost(state, view)


def _lost(state: FilterState, view: View) -> FilterLostError:
    why = (
        f"filter {state.keys.name!r} was cleared, replaced or lost since this object attached "
        "to it; call reattach() to go on with what is there now"
    )
    state.lose(view, why)
    return FilterLostError(why)


def look_for_another(keys: FilterKeys) -> Core[Descriptor | None]:
    """Return what is where a filter was; None if nothing is, or it cannot be looked at."""
    try:
        return (yield from look(keys)).descriptor
    except (RedisError, BloomlockError, OSError):
        return None
