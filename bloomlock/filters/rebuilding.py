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

from contextlib import suppress
from dataclasses import replace
from itertools import compress
from numbers import Integral
from operator import not_
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

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
from .dump import Source
from .files import Layout
from .generation import View
from .options import FilterOptions
from .state import FilterState, in_one_generation
from .stored_filter import look, look_at_shard
from .support import REBUILD, check_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    try:
        yield from made.begin()
        yield from made.add(items)
        yield from made.close()
        yield from made.add_late(() if late is None else late())
        yield from made.discard()
        yield from made.finish()
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(RedisError, BloomlockError, OSError):
            yield from made.give_up()
        raise
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
    """The steps of a rebuild of the filter that a view shows."""

    def __init__(self, state: FilterState, old: View, model: Descriptor) -> None:
        self._state = state
        self._old = old
        self._model = model
        self._prepared = switch.Prepared(state.keys, model, REBUILT, may_replace=True, what=REBUILD)
        self._closed: Descriptor | None = None
        self._absent: list[bytes] = []
        # Identities of items that were discarded, and that were not taken over since.
        self._dead: set[bytes] = set()

    def begin(self) -> Core[None]:
        self._dead = yield from self._discarded()
        yield from self._prepared.begin(Layout.of(self._model))
        target = replace(self._prepared.target, state=READY)
        view = View.of(self._state.keys, target)
        beside = [
            shard._replace(key=prepared_key(shard.key, target.generation)) for shard in view.shards
        ]
        self._new = view = replace(view, shards=tuple(beside))
        self._loader = self._attached(view)
        self._loader.key = self._model.key
        yield from self._loader.fill.start(view)

    def _attached(self, view: View) -> FilterState:
        """Return a state that works with one generation, whatever the name leads to."""
        keys = self._state.keys
        options = FilterOptions(strategy=self._state.options.strategy, prefix=keys.prefix)
        made = FilterState(keys, options, None)
        made.set_up(view.descriptor)
        made.items_per_chunk = self._state.items_per_chunk
        made.view = view
        return made

    def add(self, items: Items) -> Core[None]:
        """Take over those of the items that the filter has."""
        count = 0
        for taken in chunks(self._loader, items, "auto", finish=True):
            yield from self._take_over(encode_items(taken, count))
            count += len(taken)

    def add_late(self, items: Items) -> Core[None]:
        # The filter is closed, so items that were absent until now are tested once more.
        absent, self._absent = self._absent, []
        yield from self.add(absent)
        yield from self.add(items)

    def _take_over(self, items: Sequence[bytes]) -> Core[None]:
        old = self._state
        if self._closed is not None:
            old = self._attached(self._old)
        there = yield from before_adding(answers.exists_many(old, items))
        found = list(compress(items, there))
        yield from answers.update(self._loader, found)
        if self._dead:
            self._dead.difference_update(map(self._old.hasher.identify, found))
        self._absent += compress(items, map(not_, there))

    def discard(self) -> Core[None]:
        """Discard the items that were discarded after they were taken over."""
        dead = (yield from self._discarded()) - self._dead
        if dead and self._model.seeds:
            raise BloomlockError(
                f"filter {self._state.keys.name!r}: {len(dead)} items were discarded during the "
                "rebuild, and with seeds only the items say where their bits are; it is as it was"
            )
        by_identity = self._new.hasher.of_identities()
        shards = [
            shard._replace(slices=SliceState(by_identity, 0, self._model.slices))
            for shard in self._new.shards
        ]
        beside = replace(self._new, hasher=by_identity, shards=tuple(shards))
        yield from discard_many(self._attached(beside), dead)

    def _discarded(self) -> Core[set[bytes]]:
        source = Source(self._old)
        if not (yield from source.begin()):
            raise self._state.lost_during(REBUILD)
        return source.identities

    def close(self) -> Core[None]:
        """Close the filter: from now on no add to it is answered."""
        keys, generation = self._state.keys, self._state.own_generation()

        def step() -> Core[Descriptor]:
            stored = (yield from look(keys)).descriptor
            if stored is not None and (stored.generation, stored.state) == (generation, CLOSED):
                return stored  # by a try whose reply was lost
            if stored is None or stored.state != READY or stored.header != self._old.header:
                raise self._state.lost_during(REBUILD)
            return (yield from switch.close(keys, stored, generation))

        self._closed = yield from switch.retried(keys, step)
        self._old = View.of(keys, self._closed.with_key(self._state.key))
        if not (yield from switch.close_shards(keys, self._closed)):
            raise self._state.lost_during(REBUILD)

    def finish(self) -> Core[None]:
        """Put the new generation in the place of the closed filter."""
        closed, keys = self._closed, self._state.keys
        self._prepared.expected = closed
        try:
            yield from self._prepared.switch()
        except FilterLostError:
            stored = (yield from look(keys)).descriptor
            if closed is None or stored is None or stored.header != closed.header:
                raise
            seconds = round(switch.LOOKS * switch.LOOK_SECONDS)
            raise BloomlockError(
                f"filter {keys.name!r}: what `late` returns takes longer than {seconds} s to add, "
                "and other clients opened the filter again; it is as it was"
            ) from None

    def give_up(self) -> Core[None]:
        """Delete what was prepared, and open the filter again if it is closed."""
        yield from self._prepared.give_up()
        if self._closed is not None:
            keys, closed = self._state.keys, self._closed
            yield from switch.retried(keys, lambda: switch.reopen(keys, closed))
