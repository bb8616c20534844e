"""A filter that gets other parameters from its items, while it is in use.

The new generation is prepared and filled beside the filter. Then the filter is closed, what came
since is added, and the switch puts the new generation in its place.

R4: only items that the filter has are taken over. A client writes an item to the source before it
adds it. If the item were taken over from the source alone, that add would be answered "seen",
though no client ever got "new". An item that was discarded and is still in the source would come
back. So an item that is not there when it is read is tested once more when the filter is closed.
An item that is discarded after it was taken over is then discarded in the new generation too.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from numbers import Integral
from operator import not_
from typing import TYPE_CHECKING, Any

from bloomlock.descriptor import CLOSED, READY
from bloomlock.descriptor import REBUILD as REBUILT
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError
from bloomlock.hashing import encode_items
from bloomlock.keys import prepared_key
from bloomlock.slices import SliceState
from bloomlock.spec import RequestedSpec

from . import answers, switch
from .batches import before_adding, chunks
from .discards import discard_many
from .dump import Source, SourceReplaced
from .files import Layout
from .generation import View
from .options import FilterOptions
from .placing import or_give_up
from .state import FilterState, in_one_generation
from .stored_filter import look, look_at_shard
from .support import REBUILD, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bloomlock.descriptor import Descriptor
    from bloomlock.effects import Core

    Items = Iterable[str | bytes]


def rebuild(
    state: FilterState,
    items: Items,
    capacity: int | None,
    error_rate: float | None,
    bits: dict[str, Any],
    *,
    late: Callable[[], Items] | None,
) -> Core[None]:
    def find(view: View) -> Core[View | None]:
        check_support(REBUILD, state.strategy.name, view.descriptor)
        header, _ = yield from look_at_shard(state.keys, 0)
        return view if view.descriptor.has_header(header) else None

    view = yield from in_one_generation(state, find)
    model = _wanted(view.descriptor, capacity, error_rate, bits).describe()
    made = _Rebuild(state, view, model)
    yield from or_give_up(made.run(items, late or tuple), made.give_up)
    yield from state.attach()


def _wanted(
    old: Descriptor, capacity: int | None, error_rate: float | None, bits: dict[str, Any]
) -> RequestedSpec:
    growth = old.growth
    if growth and growth.up_to is not None and isinstance(capacity, Integral):
        growth = replace(growth, up_to=max(growth.up_to, int(capacity)))
    asked = RequestedSpec.check(
        old.capacity if capacity is None else capacity,
        old.error_rate if error_rate is None else error_rate,
        **bits,
        growth=growth,
    )
    if asked.seeds and old.key:
        raise ConfigurationError("seeds must be None, as the filter has a key")
    return replace(asked, key=old.key)


class _Rebuild:
    """A rebuild of the filter that a view shows."""

    def __init__(self, state: FilterState, old: View, model: Descriptor) -> None:
        self._state = state
        self._old = self._attached(old)
        self._model = model
        self._prepared = switch.Prepared(state.keys, model, REBUILT, may_replace=True, what=REBUILD)
        self._closed: Descriptor | None = None
        self._absent: list[bytes] = []
        # Identities of items that were discarded, and that were not taken over since.
        self._dead: set[bytes] = set()

    def run(self, items: Items, late: Callable[[], Items]) -> Core[None]:
        keys = self._state.keys
        self._dead = yield from self._discarded()
        yield from self._prepared.begin(Layout.of(self._model))
        target = self._prepared.target
        view = View.of(keys, target)
        beside = [
            shard._replace(key=prepared_key(shard.key, target.generation)) for shard in view.shards
        ]
        view = replace(view, shards=tuple(beside))
        self._new = self._attached(view)
        self._new.key = self._model.key
        yield from self._new.fill.start(view)
        yield from self._take_over(items)
        closed = yield from self._close()
        # From now on no add to the filter is answered. Items that were absent until now are tested
        # once more.
        self._old = self._attached(View.of(keys, closed.with_key(self._state.key)))
        absent, self._absent = self._absent, []
        yield from self._take_over(absent)
        yield from self._take_over(late())
        yield from self._discard((yield from self._discarded()) - self._dead, view)
        try:
            yield from self._prepared.switch(closed)
        except FilterLostError:
            stored = (yield from look(keys)).descriptor
            if stored is None or (stored.header, stored.state) != (closed.header, READY):
                raise
            seconds = round(switch.LOOKS * switch.LOOK_SECONDS)
            raise BloomlockError(
                f"filter {keys.name!r}: what `late` returns takes longer than {seconds} s to add, "
                "and other clients opened the filter again; it is as it was"
            ) from None

    def _attached(self, view: View) -> FilterState:
        """Return a state that works with one generation, whatever the name leads to."""
        keys = self._state.keys
        options = FilterOptions(strategy=self._state.options.strategy, prefix=keys.prefix)
        made = FilterState(keys, options, None)
        made.set_up(view.descriptor)
        made.items_per_chunk = self._state.items_per_chunk
        made.view = view
        return made

    def _take_over(self, items: Items) -> Core[None]:
        """Add those of the items that the filter has."""
        hasher = (yield from self._old.current()).hasher
        count = 0
        for taken in chunks(self._new, items, "auto", finish=True):
            encoded = encode_items(taken, count)
            count += len(taken)
            there = yield from before_adding(answers.exists_many(self._old, encoded))
            found = list(compress(encoded, there))
            yield from answers.update(self._new, found)
            if self._dead:
                self._dead.difference_update(map(hasher.identify, found))
            self._absent += compress(encoded, map(not_, there))

    def _discarded(self) -> Core[set[bytes]]:
        """Return the identities of the items that are discarded in the filter."""
        source = Source((yield from self._old.current()))
        try:
            yield from source.begin()
        except SourceReplaced:
            raise self._state.lost_during(REBUILD) from None
        return source.identities

    def _discard(self, dead: set[bytes], view: View) -> Core[None]:
        """Discard the items that were discarded after they were taken over."""
        if dead and self._model.seeds:
            raise BloomlockError(
                f"filter {self._state.keys.name!r}: {len(dead)} items were discarded during the "
                "rebuild, and with seeds only the items say where their bits are; it is as it was"
            )
        by_identity = view.hasher.of_identities()
        shards = [
            shard._replace(slices=SliceState(by_identity, 0, self._model.slices))
            for shard in view.shards
        ]
        beside = replace(view, hasher=by_identity, shards=tuple(shards))
        yield from discard_many(self._attached(beside), dead)

    def _close(self) -> Core[Descriptor]:
        keys, generation = self._state.keys, self._state.own_generation()
        old = yield from self._old.current()

        def step() -> Core[Descriptor]:
            stored = (yield from look(keys)).descriptor
            if stored is not None and (stored.generation, stored.state) == (generation, CLOSED):
                return stored  # by a try whose reply was lost
            if stored is None or stored.state != READY or stored.header != old.header:
                raise self._state.lost_during(REBUILD)
            return (yield from switch.close(keys, stored, generation))

        self._closed = closed = yield from switch.retried(keys, step)
        if not (yield from switch.close_shards(keys, closed)):
            raise self._state.lost_during(REBUILD)
        return closed

    def give_up(self) -> Core[None]:
        """Open the filter again if it is closed, and delete what was prepared."""
        if self._closed is not None:
            keys, closed = self._state.keys, self._closed
            yield from switch.retried(keys, lambda: switch.reopen(keys, closed))
        yield from self._prepared.give_up()
