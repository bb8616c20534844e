"""What is known of requests: the server's answers, and what this process remembers of them."""

from __future__ import annotations

import enum
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.errors import CapacityError, OutcomeUnknownError, PartialResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from scrapy import Request

    from bloomlock import BloomFilter

    Key = bytes | str


class Verdict(enum.Enum):
    """What is known about an item."""

    NEW = "new"
    SEEN = "seen"
    ALLOWED = "allowed"  # not known; the policy lets it through
    DROPPED = "dropped"  # not known; the policy keeps it out


class Check(NamedTuple):
    """A request that is to be checked.

    Attributes:
        request: The request.
        key: Its fingerprint.
        is_filtered: Whether it is dropped if it is seen.
        is_recorded: Whether it counts as seen from now on.
    """

    request: Request
    key: Key
    is_filtered: bool
    is_recorded: bool


@dataclass(slots=True, eq=False)
class RoundTrip:
    """Adds different items to the filter. It may be made in any thread: it changes nothing else.

    Attributes:
        keys: The items.
        were_known: For each whether this process knew it before.
        let_through: Those that this process let through since, on the answers to other trips.
        clears: How often this process had seen the filter cleared before.
        answers: For the first items whether they are new; None without an answer.
        error: Why some have none.
        cost: Seconds it took.
    """

    keys: list[Key]
    were_known: list[bool]
    clears: int
    let_through: set[Key] = field(default_factory=set)
    answers: list[bool | None] = field(default_factory=list)
    error: Exception | None = None
    cost: float = 0.0

    def make(self, shared: BloomFilter) -> None:
        """Add the items. Never raises."""
        started = time.monotonic()
        try:
            if len(self.keys) == 1:
                self.answers = [shared.add(self.keys[0])]
            else:
                self.answers = [*shared.add_many(self.keys)]
        # BLE001: a raise from here loses every link of the page and can hang the crawl.
        except Exception as error:  # noqa: BLE001
            self.error = error
            if isinstance(error, PartialResultError):
                self.answers = [*error.results]
            if isinstance(error, CapacityError):
                self._find_seen(shared)
        self.cost = time.monotonic() - started

    def may_be_recorded(self, number: int) -> bool:
        """Return whether an item without an answer may have been added."""
        lost = isinstance(self.error, OutcomeUnknownError)
        return lost and number < len(self.answers)

    def _find_seen(self, shared: BloomFilter) -> None:
        """Ask which items are seen; the filter refuses those that are not."""
        self.answers += [None] * (len(self.keys) - len(self.answers))
        left = [number for number, answer in enumerate(self.answers) if answer is None]
        if not left[1:]:
            return  # the one that was refused
        try:
            seen = shared.exists_many([self.keys[number] for number in left])
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
        else:
            for number, is_seen in zip(left, seen, strict=True):
                self.answers[number] = False if is_seen else None


class Look(RoundTrip):
    """Asks which of different items are seen, and adds none. It may be made in any thread."""

    def make(self, shared: BloomFilter) -> None:
        """Ask. Never raises."""
        started = time.monotonic()
        try:
            self.answers = [not seen for seen in shared.exists_many(self.keys)]
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
            if isinstance(error, PartialResultError):
                self.answers = [None if seen is None else not seen for seen in error.results]
        self.cost = time.monotonic() - started


class LastRequests:
    """The last fingerprints, each as it is; the oldest are forgotten first.

    Args:
        limit: How many are kept at most.
        seconds: For how long each is known from when it was added last; None: for ever.
    """

    def __init__(self, limit: int = 200_000, seconds: float | None = None) -> None:
        self._limit = limit
        self._seconds = seconds
        self._added_at: OrderedDict[bytes | str, float] = OrderedDict()

    def __contains__(self, key: bytes | str) -> bool:
        added_at = self._added_at.get(key)
        if added_at is None or self._seconds is None:
            return added_at is not None
        return _boot_time() - added_at < self._seconds

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._added_at)

    def add(self, key: bytes | str) -> bool:
        """Remember a fingerprint; True if it was not known."""
        is_known = key in self
        if is_known and self._seconds is None:
            return False
        self._added_at[key] = 0.0 if self._seconds is None else _boot_time()
        self._added_at.move_to_end(key)
        if len(self._added_at) > self._limit:
            self._added_at.popitem(last=False)
        return not is_known

    def exists_many(self, keys: Iterable[bytes | str]) -> list[bool]:
        """Return for each fingerprint whether it is known."""
        return [key in self for key in keys]

    def update(self, keys: Iterable[bytes | str]) -> None:
        """Remember fingerprints."""
        for key in keys:
            self.add(key)

    def clear(self) -> None:
        """Forget everything."""
        self._added_at.clear()

    def __iter__(self) -> Iterator[bytes | str]:
        return iter([key for key in self._added_at if key in self])


def _boot_time() -> float:
    """Return seconds that go on while the machine is suspended, where there are such."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeftVerdicts:
    """Verdicts on requests that wait for `request_seen`, by the identity of the request.

    A request that is given up takes its verdicts along. One that is yielded twice has two of them.
    """

    def __init__(self) -> None:
        self._left: dict[int, _Left] = {}

    def __len__(self) -> int:
        """Return how many requests have verdicts left."""
        return len(self._left)

    def leave(self, request: Request, verdict: Verdict, *, droppable: bool) -> None:
        """Keep a verdict for `take`. `droppable`: the request is dropped if it is seen."""
        number = id(request)
        left = self._left.get(number)
        if left is not None:
            left.verdicts += ((verdict, droppable),)
            return
        left = self._left[number] = _Left(request, self._forget)
        left.number, left.verdicts = number, ((verdict, droppable),)

    def _forget(self, left: _Left) -> None:
        self._left.pop(left.number, None)

    def take(self, request: Request) -> tuple[Verdict, bool] | None:
        """Return what was left first for this very object, once; None if there is nothing."""
        left = self._left.get(id(request))
        if left is None:
            return None
        verdicts = left.verdicts
        if len(verdicts) == 1:
            del self._left[left.number]
        else:
            left.verdicts = verdicts[1:]
        return verdicts[0]


class _Left(weakref.ref["Request"]):
    """The verdicts on one request, kept as long as it is."""

    __slots__ = ("number", "verdicts")

    number: int
    verdicts: tuple[tuple[Verdict, bool], ...]


class UnsharedFilter:
    """Stands in for the shared filter where a tool looks at pages: known to this process only."""

    broken = closes = False

    def __init__(self) -> None:
        self._known: set[bytes | str] = set()

    def check(self, key: bytes | str, *, droppable: bool = True, recorded: bool = True) -> Verdict:
        """Record an item and return whether it was there."""
        del droppable
        if key in self._known:
            return Verdict.SEEN
        if recorded:
            self._known.add(key)
        return Verdict.NEW

    async def check_many(
        self,
        keys: Sequence[Key],
        *,
        requests: Sequence[Request] = (),
        undroppable: Collection[int] = (),
        unrecorded: Collection[int] = (),
    ) -> list[Verdict]:
        """Record several items and return for each whether it was there."""
        del requests, undroppable
        return [
            self.check(key, recorded=number not in unrecorded) for number, key in enumerate(keys)
        ]

    def decide(
        self, key: bytes | str, *, owed: bool = True, droppable: bool = True, recorded: bool = True
    ) -> Verdict:
        """Record an item and return whether it was there."""
        del owed
        return self.check(key, droppable=droppable, recorded=recorded)

    def wipe(self) -> None:
        """Forget everything."""
        self._known.clear()

    def finish(self, last: Callable[[BloomFilter], None]) -> None:
        """Do nothing: there is nothing to close."""
