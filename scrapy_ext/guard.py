"""A filter that always answers: with the server's word, or with what the policy says instead."""

from __future__ import annotations

import logging
import time
from functools import partial
from itertools import compress
from operator import or_
from typing import TYPE_CHECKING, Any

import redis.exceptions

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import BloomlockError, CapacityError, ServerError
from scrapy_ext.answers import LastRequests, Look, RoundTrip, Verdict
from scrapy_ext.connection import place_of
from scrapy_ext.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from scrapy import Request

    from scrapy_ext.answers import Key
    from scrapy_ext.settings import FilterSettings

logger = logging.getLogger("bloomlock.scrapy")


# At most a tenth of the reactor's time is spent on a server that does not answer.
_PAUSE_PER_COST = 10.0
_SHORTEST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class CircuitBreaker:
    """Decides when a server that failed is tried again, so an outage does not cost every link.

    After a failure nothing is tried for ten times as long as the failure took: half a second
    where the connection was refused at once, ten seconds where a time-out of a second ran out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resume = 0.0
        self._since: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def may_try(self) -> bool:
        """Return whether it is time to ask the server."""
        return self._since is None or self._clock() >= self._resume

    def failed(self, cost: float) -> bool:
        """Note a try that failed after `cost` seconds; True if it is the first of an outage."""
        now = self._clock()
        first = self._since is None
        if self._since is None:
            self._since = now - cost
        self._resume = now + min(max(_PAUSE_PER_COST * cost, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        return first

    def answered(self) -> float | None:
        """Note an answer; return the seconds of the outage that ends here, None if none."""
        if self._since is None:
            return None
        lasted = self._clock() - self._since
        self._since = None
        return lasted


class GuardedFilter:
    """The shared filter behind a circuit breaker and a policy. Its checks never raise.

    What this process was answered is known to it as well. It decides while the
    filter cannot be asked, and what a filter that lost its content gets back.

    All methods are called in one thread, that of the reactor. `check_many` leaves it for the round
    trips only. While one is under way other checks go on, so what a round trip answered is compared
    with what was known before it was sent: what became known since may be known from an add of
    this round trip.
    """

    def __init__(
        self,
        config: FilterSettings,
        connect: Callable[[], Any],
        count: Callable[[str], None],
        close: Callable[[str], None],
    ) -> None:
        self._config = config
        self._connect = connect
        self._count = count
        self._close = close
        self._client: Any = None
        self._filter: BloomFilter | None = None
        self.on_trip: Callable[[RoundTrip, bool], None] | None = None
        self.on_kept: Callable[[int], None] | None = None
        self._generation = 0
        self._past: set[int] = set()
        self._breaker = CircuitBreaker(time.monotonic)
        # What the filter was answered for or is owed; and what was let through but is not for it.
        self._known: MemoryBloomFilter | LastRequests = LastRequests()
        self._unrecorded = LastRequests()
        # What this process has added itself; of a time window this is all whose age it knows.
        self._added: MemoryBloomFilter | LastRequests = self._known
        # What the filter was not given yet, as it could not be asked.
        self._lacking = LastRequests()
        # How often one was noted, and how often when the refill began.
        self._num_noted = self._num_noted_before = 0
        self._clears = 0
        # What the near-cache knew lately, and was not noted yet.
        self._kept: list[Key] = []
        self._under_way: list[RoundTrip] = []
        self._refill_due = False
        self._is_refilling = False
        self._refills = CircuitBreaker(time.monotonic)
        self._reported_full = False

    @property
    def name(self) -> str:
        """Name of the filter."""
        return self._config.name

    @property
    def closes(self) -> bool:
        """Whether the policy is to end the crawl."""
        return self._config.on_outage == "close"

    @property
    def broken(self) -> bool:
        """Whether the last round trip failed."""
        return self._breaker.broken

    def start(self) -> int:
        """Create the filter or attach to it.

        Returns:
            About how many requests were recorded before.

        Raises:
            ServerError: The server cannot be reached, or refuses.
            BloomlockError: A setting is not usable, or another filter is stored under the name.

        Cost: some round trips; the server reads the whole filter once.
        """
        self._client = self._connect()
        try:
            self._filter = shared = self._attach()
            recorded = shared.count()
            self._try_out(shared)
        except BloomlockError:
            raise
        except (redis.exceptions.RedisError, OSError) as error:
            raise ServerError(
                f"the filter {self.name!r} cannot be used at {place_of(self._client)} "
                f"({type(error).__name__}: {error}), and the crawl does not start without it"
            ) from None
        self._generation = shared.generation
        # A mirror does not forget what a window does, nor grow, nor know where a server puts bits.
        may_mirror = shared.window is None and shared.growth is None
        may_mirror = may_mirror and shared.strategy != "native"
        if may_mirror and shared.num_bits // 8 <= self._config.mirror_bytes:
            # A part of the shared filter's bits: what looks known here by chance looks known there.
            # A request costs 2 µs at most, and all together as many bytes as the shared filter.
            self._known = self._added = MemoryBloomFilter.like(shared)
        if shared.window is not None:
            # What is forgotten there is forgotten here, and is not given to the filter again.
            self._known, self._added, self._lacking = (
                LastRequests(seconds=shared.window.total_seconds()) for _ in range(3)
            )
        return recorded

    def _try_out(self, shared: BloomFilter) -> None:
        """Raise BloomlockError if the filter cannot do what is wanted of it."""

    def _attach(self) -> BloomFilter:
        return self._config.open(self._client, near_cache=self._config.near_cache)

    @property
    def shared(self) -> BloomFilter:
        """The filter. `start` has returned."""
        if self._filter is None:
            raise RuntimeError("start() first")
        return self._filter

    def check(self, key: Key, *, droppable: bool = True, recorded: bool = True) -> Verdict:
        """Record an item and return whether it was there. Never raises.

        Args:
            key: The item.
            droppable: Whether the policy `drop` may keep it out.
            recorded: False: only return whether it is there.

        Cost: one round trip, or none for an item in the near-cache; the reactor waits for it.
        """
        if self._are_at_hand([key])[0]:
            return Verdict.SEEN
        unrecorded = () if recorded else (0,)
        trips = []
        for trip in self._trips([key], unrecorded):
            trip.make(self.shared)
            self._end(trip, is_awaited=False)
            trips.append(trip)
        (verdict,) = self._verdicts([key], trips, () if droppable else (0,), unrecorded)
        if self._may_refill():
            self._refilled(*self._refill(self._owed()))
        return verdict

    async def check_many(
        self,
        keys: Sequence[Key],
        *,
        requests: Sequence[Request] = (),
        undroppable: Collection[int] = (),
        unrecorded: Collection[int] = (),
    ) -> list[Verdict]:
        """Record items and return for each, in order, whether it was there. Never raises.

        Args:
            keys: The items; of a repeated one the first is new.
            requests: What they stand for, for `note`.
            undroppable: Where the items stand that the policy `drop` may not keep out.
            unrecorded: Where the items stand that are looked for only.

        Cost: one round trip for all, in a thread; the reactor goes on meanwhile. A second one if
        the filter is full, and one for what is looked for only; none if the near-cache knows all.
        """
        verdicts = [Verdict.SEEN] * len(keys)
        at_hand = self._are_at_hand(keys)
        left = [number for number, is_at_hand in enumerate(at_hand) if not is_at_hand]
        if not left:
            return verdicts
        if requests:
            for number in reversed(left):
                self.note(keys[number], requests[number])
        checked = await self._check_at_server(
            [keys[number] for number in left],
            {at for at, number in enumerate(left) if number in undroppable},
            {at for at, number in enumerate(left) if number in unrecorded},
        )
        for number, verdict in zip(left, checked, strict=True):
            verdicts[number] = verdict
        return verdicts

    def note(self, key: Key, request: Request) -> None:
        """Say which request an item that is about to be checked stands for."""

    def is_seen_here(self, key: Key) -> bool:
        """Return whether an item is seen by what is known without the server; see `note_kept`."""
        if self.shared.is_kept(key):
            self._kept.append(key)
            return True
        return key in self._unrecorded

    def note_kept(self) -> None:
        """Know, and count, what `is_seen_here` found in the near-cache."""
        if self._kept:
            self._known.update(self._kept)
            if self.on_kept is not None:
                self.on_kept(len(set(self._kept)))
            self._kept.clear()

    def _are_at_hand(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each item whether it is seen by what is known without the server."""
        are_kept = self.shared.kept_many(keys)
        if any(are_kept):
            self._kept += compress(keys, are_kept)
            self.note_kept()
        if self._unrecorded:
            return list(map(or_, are_kept, self._unrecorded.exists_many(keys)))
        return are_kept

    async def _check_at_server(
        self, keys: Sequence[Key], undroppable: Collection[int], unrecorded: Collection[int]
    ) -> list[Verdict]:
        """Do as `check_many` for items that are not at hand."""
        trips: list[RoundTrip] = []
        try:
            for trip in self._trips(keys, unrecorded):
                trips.append(trip)
                self._under_way.append(trip)
                await run_in_thread(partial(trip.make, self.shared))
                self._end(trip, is_awaited=True)
            verdicts = self._verdicts(keys, trips, undroppable, unrecorded)
        finally:
            self._under_way = [one for one in self._under_way if one not in trips]
        if self._may_refill():
            self._refilled(*await run_in_thread(partial(self._refill, self._owed())))
        return verdicts

    def _trips(self, keys: Sequence[Key], unrecorded: Collection[int]) -> Iterator[RoundTrip]:
        """Yield the round trips to make for items, each when the one before has ended."""
        looked = [key for number, key in enumerate(keys) if number in unrecorded]
        asked = list(dict.fromkeys(looked))
        # First: after the other one what is recorded there would count as seen.
        if asked and self._breaker.may_try():
            yield Look(asked, self._were_known(asked), self._clears)
        recorded = [key for number, key in enumerate(keys) if number not in unrecorded]
        trip = self._begin(recorded if looked else keys)
        if trip is not None:
            yield trip

    def _is_at_hand(self, key: Key) -> bool:
        """Return whether an item is seen that the filter need not, or cannot, know."""
        return key in self._unrecorded

    def _begin(self, keys: Sequence[Key]) -> RoundTrip | None:
        """Return the round trip that records items; None if there is none to make."""
        asked = [key for key in dict.fromkeys(keys) if not self._is_at_hand(key)]
        if not asked or not self._breaker.may_try():
            return None
        return RoundTrip(asked, self._were_known(asked), self._clears)

    def _end(self, trip: RoundTrip, *, is_awaited: bool) -> None:
        """Note how a round trip went. `is_awaited`: the reactor went on meanwhile."""
        if self.on_trip is not None:
            self.on_trip(trip, is_awaited)
        if self.shared.has_discards:
            # Its answers may be the first ones that say so.
            trip.were_known = self._were_known(trip.keys)
        if trip.error is None:
            self._note_answer()
        elif isinstance(trip.error, CapacityError):
            self._full(trip.error)
        else:
            self._failed(trip.error, trip.cost)

    def _read(self, trip: RoundTrip) -> dict[Key, Verdict]:
        """Return the verdicts that a round trip allows, and know its items from now on."""
        # What was known before then belongs to a filter that is cleared; what was seen may, too.
        cleared = trip.clears != self._clears
        found: dict[Key, Verdict] = {}
        known_now: list[Key] = []
        added: list[Key] = []
        for number, (key, answer) in enumerate(zip(trip.keys, trip.answers, strict=False)):
            if answer is None:
                if not trip.may_be_recorded(number):
                    continue
                self._count("unknown")
                self._note_lacking(key)
            known = trip.were_known[number] and not cleared
            if answer and known:
                self._refill_due = True
            # What may be recorded is let through: dropped, it would be lost for every process. What
            # another trip let through meanwhile is on its way. What it found seen is not enough:
            # that may be what this trip has recorded.
            new = answer is not False and not known and key not in trip.let_through
            found[key] = Verdict.NEW if new else Verdict.SEEN
            if new:
                self._let_through(key)
            if new or not cleared:
                known_now.append(key)
                if answer is not False:
                    added.append(key)
        self._known.update(known_now)
        self._note_added(added)
        return found

    def _note_added(self, keys: Sequence[Key]) -> None:
        """Note what is added to the filter now; it is known already."""
        if self._added is not self._known:
            self._added.update(keys)

    def _note_lacking(self, key: Key) -> None:
        """Note that the filter has to be given an item."""
        self._lacking.add(key)
        self._num_noted += 1

    def _let_through(self, key: Key) -> None:
        """Say so to the round trips that are under way."""
        for trip in self._under_way:
            trip.let_through.add(key)

    def _were_known(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each item whether it has to be there.

        What the filter had may be forgotten; what it was not given is not.
        """
        if self.shared.window is not None or self.shared.has_discards:
            return self._lacking.exists_many(keys)
        return self._known.exists_many(keys)

    def _read_look(self, look: Look) -> dict[Key, Verdict]:
        """Return the verdicts that a look allows, and know what it has found."""
        cleared = look.clears != self._clears
        found: dict[Key, Verdict] = {}
        for key, is_new, known in zip(look.keys, look.answers, look.were_known, strict=False):
            if is_new is None:
                continue
            was_known = known and not cleared
            found[key] = Verdict.NEW if is_new and not was_known else Verdict.SEEN
            if is_new and was_known:
                self._refill_due = True
            elif not is_new and not cleared:
                self._known.add(key)
        return found

    def _verdicts(
        self,
        keys: Sequence[Key],
        trips: Sequence[RoundTrip],
        undroppable: Collection[int],
        unrecorded: Collection[int],
    ) -> list[Verdict]:
        """Return the verdict on each item, after the round trips that were made for them."""
        looked: dict[Key, Verdict] = {}
        found: dict[Key, Verdict] = {}
        is_full = False
        for trip in trips:
            if isinstance(trip, Look):
                looked = self._read_look(trip)
            else:
                found, is_full = self._read(trip), isinstance(trip.error, CapacityError)
        verdicts = []
        for number, key in enumerate(keys):
            recorded = number not in unrecorded
            verdict = found.get(key) if recorded else looked.get(key)
            if verdict is None and (key in self._unrecorded or key in self._known):
                verdict = Verdict.SEEN
            elif verdict is None:
                verdict = self.decide(
                    key,
                    owed=not is_full,
                    droppable=number not in undroppable,
                    recorded=recorded,
                )
            elif verdict is Verdict.NEW and recorded:
                found[key] = Verdict.SEEN
            if recorded and key in looked and verdict is not Verdict.DROPPED:
                looked[key] = Verdict.SEEN
            verdicts.append(verdict)
        return verdicts

    def decide(
        self, key: Key, *, owed: bool = True, droppable: bool = True, recorded: bool = True
    ) -> Verdict:
        """Decide about an item that nothing is known of, by the policy.

        `owed`: the filter gets it later. `droppable`: the policy `drop` may keep it out.
        `recorded`: it counts as seen from now on.
        """
        if droppable and self._config.on_outage == "drop":
            return Verdict.DROPPED
        chosen = self._known if owed else self._unrecorded
        if key in chosen:
            return Verdict.SEEN
        if recorded:
            chosen.add(key)
            self._let_through(key)
            if owed:
                self._note_added([key])
                self._note_lacking(key)
        return Verdict.ALLOWED

    def wipe(self) -> None:
        """Clear the filter for every process that uses it, and forget what this one knows."""
        self.shared.clear()
        self._follow(self.shared)

    def finish(self, last: Callable[[BloomFilter], None]) -> None:
        """Hand over what is owed, let `last` have the filter, close the client. Never raises."""
        if self._filter is not None:
            try:
                if self._breaker.broken or self._refill_due or self._is_refilling:
                    self._filter.update(self._owed())
                last(self._filter)
            # BLE001: an error here would hide how the crawl ended.
            except Exception as error:  # noqa: BLE001
                logger.warning("The filter %r was not closed in order: %s", self.name, error)
            self._filter.close()
        if self._client is not None:
            self._client.close()

    def _note_answer(self) -> None:
        """Note that the server answered, and follow the filter where it went."""
        lasted = self._breaker.answered()
        if lasted is not None:
            logger.warning("The filter %r answers again after %.1f s.", self.name, lasted)
            # It may have come back with the bits of an earlier moment.
            self._refill_due = True
        if self.shared.generation != self._generation:
            self._follow(self.shared)

    def _follow(self, shared: BloomFilter) -> None:
        """Go on with another generation: emptied on purpose, or made because one was lost."""
        self._past.add(self._generation)
        self._generation = shared.generation
        # A generation that returns is one of a server that was set back.
        if shared.cleared and shared.generation not in self._past:
            self._known.clear()
            self._kept.clear()
            self._added.clear()
            self._lacking.clear()
            for trip in self._under_way:
                trip.let_through.clear()
            self._clears += 1
            self._refill_due = False
        else:
            self._refill_due = True

    def _may_refill(self) -> bool:
        """Return whether it is time to give the filter what this process knows; if so, begin."""
        if (
            not self._refill_due
            or self._is_refilling
            or self._breaker.broken
            or not self._refills.may_try()
        ):
            return False
        self._refill_due, self._is_refilling = False, True
        self._num_noted_before = self._num_noted
        return True

    def _owed(self) -> MemoryBloomFilter | list[Key]:
        """Return what the filter gets back, to be read in another thread.

        That is all that this process knows. Of a filter with a time window it is what this process
        added within the window: what it found there may have been forgotten since. Where items were
        forgotten one by one, which is not known here, it is only what the filter was not given.
        """
        if self.shared.has_discards:
            return [*self._lacking]
        return self._added if isinstance(self._added, MemoryBloomFilter) else [*self._added]

    def _refill(self, owed: MemoryBloomFilter | list[Key]) -> tuple[Exception | None, float]:
        """Give the filter items; return what went wrong, and the seconds it took."""
        started = time.monotonic()
        try:
            self.shared.update(owed)
        # BLE001: the same promise as in `check`; what is owed stays owed.
        except Exception as error:  # noqa: BLE001
            return error, time.monotonic() - started
        return None, time.monotonic() - started

    def _refilled(self, error: Exception | None, cost: float) -> None:
        """Note how giving the filter everything went."""
        self._is_refilling = False
        if error is None:
            self._count("refills")
            logger.warning("The filter %r was given all requests this process knows.", self.name)
            self._refills.answered()
            # What came meanwhile is given the next time.
            if self._num_noted == self._num_noted_before:
                self._lacking.clear()
        elif isinstance(error, CapacityError):
            self._full(error)
            self._refills.answered()
        else:
            self._refill_due = True
            self._count("errors")
            if self._refills.failed(cost):
                logger.error(
                    "The filter %r may have lost requests and cannot be given them again (%s: %s); "
                    "it is tried again.",
                    self.name,
                    type(error).__name__,
                    error,
                )

    def _failed(self, error: Exception, cost: float) -> None:
        """Note a failed round trip, and log the first of each outage."""
        self._count("errors")
        if self._breaker.failed(cost):
            self._count("outages")
            logger.error(
                "The filter %r cannot be asked (%s: %s); what this process has not seen is decided "
                "by BLOOMLOCK_ON_OUTAGE until then: %s.",
                self.name,
                type(error).__name__,
                error,
                self._config.on_outage,
            )
        if self.closes:
            self._close("bloomlock_outage")

    def _full(self, error: CapacityError) -> None:
        """Note that the filter refused an item because it is full."""
        self._count("full")
        if not self._reported_full:
            self._reported_full = True
            logger.error("%s Until then: %s.", error, self._config.on_outage)
        if self.closes:
            self._close("bloomlock_full")
