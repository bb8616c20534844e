"""What happened to a lock, put together from what its holders wrote down, and what was wrong. Pure.

Times are nanoseconds of a clock that all processes of the machine share (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FOREVER = 1 << 62

Event = Mapping[str, Any]
"""`time`, `worker`, `hold` (its number in that worker), `kind`, and what belongs to the kind:
asked (shared) · failed (error) · acquired (fence, token, until) · valid (until) · lost · releasing
· released (error) · killed."""


@dataclass(slots=True)
class Hold:
    """One acquire of one worker, and what came of it.

    Attributes:
        worker: Who asked.
        number: Which of its holds.
        shared: Whether it may overlap other shared holds.
        asked: When acquire was called.
        acquired: When acquire returned with the lock; None if it did not.
        fence: The number of the grant; None where the lock has none.
        token: What the server stores for this hold.
        until: The latest deadline the holder believed in; FOREVER for a lock that tells none.
        released: When release was called; None if it was not.
        lost: When the holder was told that it had lost the lock; None if it was not.
        failed: What acquire said instead of giving the lock.
        release_error: What release said instead of giving it back.
        failed_at: When acquire said so.
        killed: When the worker was killed; None if it was not.
    """

    worker: int
    number: int
    shared: bool = False
    asked: int = 0
    acquired: int | None = None
    fence: int | None = None
    token: str | None = None
    until: int = 0
    released: int | None = None
    lost: int | None = None
    failed: str | None = None
    release_error: str | None = None
    failed_at: int | None = None
    killed: int | None = None

    @property
    def start(self) -> int:
        """When it became valid; FOREVER if it never did."""
        return FOREVER if self.acquired is None else self.acquired

    @property
    def end(self) -> int:
        """When it ceased to be valid: released, told lost, or over by the holder's own deadline."""
        ends = [self.until]
        ends += [end for end in (self.released, self.lost) if end is not None]
        if self.until == FOREVER and self.killed is not None:
            ends.append(self.killed)  # without a deadline only death ends it
        return min(ends)

    @property
    def valid(self) -> bool:
        """Whether there was a moment in which the holder was entitled to believe in it."""
        return self.start < self.end

    def __str__(self) -> str:
        """Tell who held it, when, in milliseconds."""
        kind = "shared" if self.shared else "exclusive"
        name = f"{kind} hold {self.number} of worker {self.worker} (fence {self.fence}"
        if self.acquired is None:
            return f"{name}, asked {self.asked / 1e6:.3f})"
        return f"{name}, {self.start / 1e6:.3f} to {self.end / 1e6:.3f})"


@dataclass(frozen=True, slots=True)
class Wipe:
    """A moment in which the server forgot everything.

    Attributes:
        start: Before which nothing was forgotten.
        end: After which everything was.
        tokens: Of the holds that the server knew at that moment.
    """

    start: int
    end: int
    tokens: frozenset[str] = field(default_factory=frozenset)

    def took(self, hold: Hold) -> bool:
        """Tell whether this hold was forgotten; whoever asks later may have the same token."""
        return hold.token in self.tokens and hold.asked < self.end

    def excuses(self, old: Hold, new: Hold) -> bool:
        """Return whether one hold was forgotten and the other granted after that.

        The owner of the forgotten one may hear of its grant after the other's owner does.
        """
        return self.took(old) and not self.took(new) and new.start > self.start


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: `overlap`, `fence`, `starved`, `late` or `stale`, and by which holds."""

    kind: str
    holds: tuple[Hold, ...]

    def __str__(self) -> str:
        """Tell all of it."""
        return f"{self.kind}: {' · '.join(map(str, self.holds))}"


def holds_of(events: Iterable[Event]) -> list[Hold]:
    """Put the events of each hold together; holds in the order of asking."""
    found: dict[tuple[int, int], Hold] = {}
    killed: dict[int, int] = {}
    for event in sorted(events, key=lambda event: event["time"]):
        if event["kind"] == "killed":
            killed[event["worker"]] = event["time"]
        elif event.get("hold", -1) >= 0:
            key = event["worker"], event["hold"]
            _note(found.setdefault(key, Hold(*key)), event)
    for hold in found.values():
        hold.killed = killed.get(hold.worker)
    return sorted(found.values(), key=lambda hold: hold.asked)


def _note(hold: Hold, event: Event) -> None:
    kind, time = event["kind"], event["time"]
    if kind == "asked":
        hold.asked, hold.shared = time, event["shared"]
    elif kind == "acquired":
        hold.acquired, hold.fence, hold.token = time, event["fence"], event["token"]
        hold.until = event["until"]
    elif kind == "valid":
        hold.until = max(hold.until, event["until"])
    elif kind == "lost" and hold.lost is None:
        hold.lost = time
    elif kind == "releasing":
        hold.released = time
    elif kind == "released":
        hold.release_error = event["error"]
    elif kind == "failed":
        hold.failed, hold.failed_at = event["error"], time


def check(
    holds: Sequence[Hold], *, bound: float, ttl: float | None = None, wipes: Sequence[Wipe] = ()
) -> list[Violation]:
    """Find every broken promise of a history.

    Args:
        holds: All of them.
        bound: Seconds in which everybody who asks and lives has an answer.
        ttl: Lease in seconds; a hold that the server forgot must be over that long after.
            None does not look at that.
        wipes: When the server forgot everything.
    """
    return [
        *overlaps(holds, wipes),
        *falling_fences(holds, wipes),
        *waits(holds, bound),
        *(() if ttl is None else stale(holds, wipes, ttl)),
    ]


def overlaps(holds: Iterable[Hold], wipes: Sequence[Wipe] = ()) -> Iterator[Violation]:
    """Yield each pair of valid holds at one moment that are not both shared.

    A hold that the server was made to forget may overlap those granted after it: its holder finds
    out at the next renewal. Those granted after it may not overlap each other.
    """
    running: list[tuple[int, int, Hold]] = []
    order = sorted((hold for hold in holds if hold.valid), key=lambda hold: hold.start)
    for number, hold in enumerate(order):
        while running and running[0][0] <= hold.start:
            heapq.heappop(running)
        for _, _, other in sorted(running, key=lambda entry: entry[1]):
            if hold.shared and other.shared:
                continue
            if not any(wipe.excuses(other, hold) or wipe.excuses(hold, other) for wipe in wipes):
                yield Violation("overlap", (other, hold))
        heapq.heappush(running, (hold.end, number, hold))


def falling_fences(holds: Iterable[Hold], wipes: Sequence[Wipe] = ()) -> Iterator[Violation]:
    """Yield each valid hold whose fence is not above that of every grant known to be earlier.

    Earlier is a hold that was acquired before the other was asked for, or, unless both are shared,
    that was acquired before the other was: of two such holds only one can be granted at a time.
    Between shared holds an equal fence is no fall, but a lower one is. Not compared is a grant that
    was forgotten by the server before its owner heard of it.
    """
    fenced = sorted(
        (hold for hold in holds if hold.valid and hold.fence is not None),
        key=lambda hold: hold.start,
    )
    fenced = [
        hold
        for hold in fenced
        if not any(wipe.took(hold) and hold.start > wipe.start for wipe in wipes)
    ]
    top: dict[bool, Hold] = {}
    past: dict[bool, tuple[list[int], list[Hold]]] = {True: ([], []), False: ([], [])}
    for hold in fenced:
        # An exclusive hold is compared with all before it; a shared one with the exclusive ones.
        rivals = [top[kind] for kind in ((False,) if hold.shared else (True, False)) if kind in top]
        fallen = [rival for rival in rivals if _fence(rival) >= _fence(hold)]
        if hold.shared and (earlier := _highest_before(past[True], hold.asked)) is not None:
            fallen += [earlier] if _fence(earlier) > _fence(hold) else []
        for rival in fallen:
            yield Violation("fence", (rival, hold))
        if hold.shared not in top or _fence(hold) > _fence(top[hold.shared]):
            top[hold.shared] = hold
        times, highest = past[hold.shared]
        times.append(hold.start)
        highest.append(top[hold.shared])


def _fence(hold: Hold) -> int:
    assert hold.fence is not None
    return hold.fence


def _highest_before(past: tuple[list[int], list[Hold]], time: int) -> Hold | None:
    times, highest = past
    index = len(times)
    while index and times[index - 1] >= time:
        index -= 1
    return highest[index - 1] if index else None


def waits(holds: Iterable[Hold], bound: float) -> Iterator[Violation]:
    """Yield who was alive and got no answer (starved), or one only after `bound` seconds (late)."""
    for hold in holds:
        answered = hold.failed_at if hold.acquired is None else hold.acquired
        if answered is None:
            if hold.killed is None:
                yield Violation("starved", (hold,))
        elif answered - hold.asked > bound * 1e9:
            yield Violation("late", (hold,))


def stale(holds: Iterable[Hold], wipes: Sequence[Wipe], ttl: float) -> Iterator[Violation]:
    """Yield holds that the server had forgotten and that were believed in beyond their lease."""
    for hold in holds:
        for wipe in wipes:
            if hold.valid and wipe.took(hold) and hold.end > wipe.end + ttl * 1e9:
                yield Violation("stale", (hold,))
