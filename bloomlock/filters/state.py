"""State of a filter object, shared by BloomFilter and AsyncBloomFilter."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from bloomlock.clock import boot_clock
from bloomlock.descriptor import (
    CLEAR,
    CREATE,
    DISCARDED,
    Descriptor,
    header_of,
    is_header,
    unflagged,
)
from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)
from bloomlock.hash_keys import key_difference
from bloomlock.keys import FilterKeys
from bloomlock.runtime.forks import LockOwner
from bloomlock.spec import RequestedSpec
from bloomlock.strategies import BitmapStrategy
from bloomlock.strategies.script import BROKEN, ScriptStrategy

from .fill import FillWatch, GrowthWatch
from .generation import View, new_generation
from .near_cache import CacheTicket, KeptAnswers
from .stored_filter import check_room, look, look_at_shard
from .support import CLAIMS, DISCARDS, SUPPORT, check_support
from .switch import delete, put, retried, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from bloomlock.effects import AnyRuntime, Core

    from .options import FilterOptions
    from .stored_filter import Found

T = TypeVar("T")
logger = logging.getLogger("bloomlock")

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
        self._tokens: dict[tuple[int, bytes], bytes] = {}

    def keep(self, item: bytes, tokens: bytes) -> None:
        place = os.getpid(), item
        with self._lock:
            if len(self._tokens) < UNANSWERED:
                self._tokens[place] = self._tokens.get(place, b"") + tokens

    def take(self, item: bytes) -> bytes:
        if not self._tokens:
            return b""
        with self._lock:
            return self._tokens.pop((os.getpid(), item), b"")


class FilterState(LockOwner):
    """Parameters, policies and the current view of one filter object.

    Its lock is held when the view, why it is lost, our generations or the near-cache change; never
    while anything waits.

    Attributes:
        wanted: The requested parameters; None for a filter that is attached to as it is.
        bitmap, merge: What a batch may take in place of the strategy; the second has no answers.
        tombstones: What looks for tombstones alone: the bits of the items are all set.
        route: The route that "auto" took last where there was a choice; empty: none yet.
        view: The generation attached to; None before the first use of an asyncio filter.
        lost: Why the view is no longer true (`on_lost="raise"` only), else None.
        runtime: Of the object's client; set before the first core is run.
        runs_scripts: Whether the strategy takes claims.
        keeps_found: Whether items that are only found are kept near, else those that are added. An
            add of a kept item is left out. Where adds refresh items, that add would have refreshed
            one of an older epoch.
        flagged: The header of the generation in all of whose shards this object has set the flag of
            discards; 0: of none.
    """

    runtime: AnyRuntime

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
        self.runs_scripts = self.strategy.name in SUPPORT[CLAIMS].strategies
        self.fill = FillWatch(self.keys.name, refuse=options.on_full == "raise", clock=self.clock)
        if model is not None and model.growth:
            self.fill = GrowthWatch(self.keys, self.clock)
        self.tombstones = ScriptStrategy(self.strategy.name, all_set=True)
        self.bitmap = BitmapStrategy(self.strategy)
        self.merge = BitmapStrategy(self.strategy, answers=False)

    @property
    def descriptor(self) -> Descriptor:
        """The parameters attached to, or, before that, the requested ones."""
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
            descriptor = yield from retried(
                self.keys, partial(self._look_or_create, must_follow=must_follow)
            )
        except Exception:
            # The view stays, and its generation may be gone.
            self.drop_cached()
            raise
        return (yield from self._adopt(descriptor))

    def _look_or_create(self, *, must_follow: bool) -> Core[Descriptor]:
        found = yield from settle(self.keys, (yield from look(self.keys)), is_checked=True)
        stored, gone, wanted = found.descriptor, found.gone, self.wanted
        name, before = self.keys.name, None if self.view is None else self.view.descriptor
        is_same = stored is not None and before is not None and stored.header == before.header
        # What has all items of the generation before may have other parameters.
        follows = is_same or (stored is not None and stored.continues(before))
        if must_follow and not follows:
            raise FilterLostError(
                f"filter {name!r} was rebuilt, and then deleted or replaced, since this "
                "object attached to it; call reattach() to go on with what is there now"
            )
        if stored is not None:
            self._refuse_other(stored, None if follows else wanted)
        if gone is not None and not (self.on_lost == "recreate" and (wanted or stored)):
            raise FilterLostError(
                f"filter {name!r} has lost {gone} (evicted, or deleted by hand); delete it, "
                'or pass on_lost="recreate" to start with an empty one'
            )
        if stored is not None and gone is None:
            return stored
        # Shards of the stored parameters may be there, and these are the wanted ones.
        model = stored or (wanted.describe() if wanted else None)
        return (yield from self._put(found, model, CREATE))

    def _put(self, found: Found, model: Descriptor | None, origin: str) -> Core[Descriptor]:
        if model is None:
            raise FilterNotFoundError(
                f"there is no filter named {self.keys.name!r} with prefix {self.keys.prefix!r}"
            )
        planned = model.with_generation(self.own_generation(), origin)
        if found.descriptor is None and not found.header:
            yield from check_room(self.keys, planned, planned.shard_bytes())
        return (yield from put(self.keys, found, planned))

    def _refuse_other(self, stored: Descriptor, wanted: RequestedSpec | None) -> None:
        name = self.keys.name
        self.strategy.check_filter(name, stored)
        if wanted is not None and (differences := wanted.differences(stored)):
            raise FilterMismatchError(
                f"filter {name!r} exists with other parameters ({'; '.join(differences)}); "
                "attach to it by open(), change it by rebuild(), or delete it by delete_filter()"
            )
        if wanted is None and (difference := key_difference(stored.key, self.key, opens=True)):
            raise FilterMismatchError(
                f"filter {name!r} exists with another key ({difference}); give the one it was "
                "created with"
            )

    def _adopt(self, descriptor: Descriptor) -> Core[View]:
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
        self.drop_cached()
        yield from self.fill.start(view)
        return view

    def clear(self) -> Core[None]:
        """S6: empty the filter: the same parameters, a new generation, all bits 0.

        That is also done if another client has emptied it since: its generation was not there when
        this call began, and began by a clear or a creation. A rebuild keeps the items, and a copy
        or an import brings others, so after these the filter is cleared once more. A filter that
        was deleted during the call is created again.
        """
        own = None if self.view is None and self.wanted is None else self.descriptor
        first = 0

        def step() -> Core[Descriptor]:
            nonlocal first
            found = yield from settle(self.keys, (yield from look(self.keys)))
            stored = found.descriptor
            if stored is not None:
                self._refuse_other(stored, None)
                is_new = first not in (0, stored.generation) and stored.origin in (CREATE, CLEAR)
                if is_new and found.gone is None:
                    return stored
                first = first or stored.generation
            return (yield from self._put(found, stored or own, CLEAR))

        try:
            descriptor = yield from retried(self.keys, step)
        finally:
            # Whatever the outcome, this object gives no answer from before.
            self.drop_cached()
        yield from self._adopt(descriptor)

    def delete(self) -> Core[bool]:
        try:
            own = None if self.view is None else self.view.descriptor
            return (yield from delete(self.keys, own))
        finally:
            self.drop_cached()

    def note_discards(self, view: View) -> View:
        """Go by tombstones from now on; the view returned may be one of another thread."""
        # Kept answers lasted as long as no header had the flag.
        self.drop_cached()
        check_support(DISCARDS, self.strategy.name)
        with self._lock:
            if self.view is None or self.view is view:
                self.view = replace(view, discards=True, expected=view.header | DISCARDED)
            return self.view

    def own_generation(self) -> int:
        generation = new_generation()
        with self._lock:
            self._own_headers = (*self._own_headers[1 - OWN_GENERATIONS :], header_of(generation))
        return generation

    def is_own(self, header: int) -> bool:
        # What one thread clears is no loss to the others.
        return unflagged(header) in self._own_headers

    def lose(self, view: View, header: int) -> None:
        """Raise FilterLostError, unless another thread has attached to what came after the view."""
        what = "was cleared or replaced by another client" if is_header(header) else "is missing"
        if header == BROKEN:
            what = "has lost what was discarded from it (evicted, or deleted by hand)"
        if view.descriptor.has_header(unflagged(header)):
            what = "has lost one of its shards"
        why = (
            f"filter {self.keys.name!r} {what} since this object attached to it; call reattach() "
            'to go on with what is there now, or use on_lost="recreate"'
        )
        with self._lock:
            if self.view is not None and self.view is not view:
                return
            self.lost = why if self.view is view else self.lost
        self.drop_cached()
        raise FilterLostError(why)

    def lost_during(self, what: str) -> FilterLostError:
        self.drop_cached()
        return FilterLostError(
            f"filter {self.keys.name!r} was cleared, replaced or lost during {what}"
        )

    def current(self) -> Core[View]:
        """Return the view to work with, attaching at the first use."""
        if self.lost is not None:
            raise FilterLostError(self.lost)
        if self.view is None:
            return (yield from self.attach())
        return self.view

    # -- kept answers ------------------------------------------------------------------------------

    def begin_cached(self, view: View) -> CacheTicket | None:
        """Return where an operation keeps its answers, if it does; called before it asks."""
        if self.caching is None:
            return None
        with self._lock:
            near, old = self.near, self.near
            if near is None or near.header != view.expected or near.is_over:
                lasts = not (view.discards or view.descriptor.window)
                near = KeptAnswers(view.expected, self.caching, self.near_clock, lasts=lasts)
                if view is self.view and self.lost is None:
                    self.near = near
                    if old is not None:
                        # An operation that has it still may be answered in another epoch.
                        old.end()
        return CacheTicket(near, self.near_clock())

    def drop_cached(self) -> None:
        """Keep none of the answers kept until now, nor those on their way."""
        if self.near is not None:
            self.near.end()


def in_one_generation(state: FilterState, work: Callable[[View], Core[T | None]]) -> Core[T]:
    """Do the work in the generation attached to, or in the next where the filter may be followed.

    The result of `work` is None if it met another generation, or noted discarded items.
    """
    view = yield from state.current()
    for _ in range(TRIES):
        try:
            done = yield from work(view)
        except Exception:
            if state.near is not None:
                state.near.suspend()
            raise
        if done is not None:
            return done
        now = state.view
        if now is not None and now is not view and now.header == view.header and not state.lost:
            # It has heard of discarded items.
            view = now
        else:
            view = yield from follow(state, view)
    raise FilterLostError(f"filter {state.keys.name!r} vanished {TRIES} times during one operation")


def follow(state: FilterState, view: View, header: int | None = None) -> Core[View]:
    """Return the view of the generation that came after that of a view, if it may be followed.

    `header` is what a shard was found to have; None: the first one is asked.
    """
    if header is None:
        header, _ = yield from look_at_shard(state.keys, 0)
    is_own = state.is_own(header) and not view.descriptor.has_header(header)
    is_strict = state.on_lost == "raise"
    stored = None
    if not is_own:
        with suppress(RedisError, BloomlockError, OSError):
            stored = (yield from look(state.keys)).descriptor
    if not is_own and (stored is None or not stored.continues(view.descriptor)):
        if is_strict:
            state.lose(view, header)
            return state.view or view
        logger.warning("filter %r was cleared or lost; attaching to it again", state.keys.name)
    try:
        return (yield from state.attach(must_follow=is_strict and not is_own))
    except FilterMismatchError:
        # Later calls attach first, so they write nothing to the filter that has the name now.
        if state.view is view:
            state.view = None
        raise
