"""A randomized model of items that many workers claim at once, judged by interval.

A round is one filter of a random shape and some objects on it. Threads and tasks claim items in
every way there is, commit them, give them back or let them fall, while a conductor lets leases end,
retries, drops and discards items, and clears, renames or replaces the filter. Every call is noted
with the ticks at which it began and ended. What takes an item out of the filter divides time into
lives of the item; a call that overlaps none of that belongs to one life for certain. Then:

    two owners     an item was NEW although a claim of it was open all the time
    two commits    two claims of an item were committed in one life
    denied         NEW or "not there", although the item was in the filter for certain
    invented       SEEN or "there", although no worker can have added the item
    no owner       BUSY or refused, although no other claim of the item can be there
    fence          a later claim of an item has no higher fence
    forgotten      an item whose worker died is not offered, or it is offered twice
    payload        what came back is not what was given with the item
    counts         a counter of the server differs from what the workers were answered
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ITEMS = 40
STALENESS = 0.02
KINDS: dict[str, dict[str, Any]] = {
    "bitmap": {"capacity": 5000},
    "blocked": {"capacity": 5000, "layout": "blocked"},
    "growing": {"capacity": 10, "on_full": "grow", "up_to": 20_000},
    "window": {"capacity": 5000, "window": 86_400.0},
}
STRATEGIES = {
    "bitmap": ("atomic", "lua", "transaction"),
    "blocked": ("atomic", "lua", "transaction"),
    "growing": ("atomic", "lua"),
    "window": ("atomic",),
}
ONCE, FAILING, ADDED, BYTES = "once", "failing", "added", "bytes"
NAMESPACES = ("plain", BYTES, ONCE, FAILING, ADDED)
"""By what is done with the items besides claims."""
MAX_ATTEMPTS = 3

NEW, SEEN, BUSY, FAILED = "new", "seen", "busy", "failed"
THERE, NOT_THERE, ADDING, TRIED = "there", "not there", "added", "tried to add"
UNKNOWN, OK, LOST = "unknown", "ok", "lost"
UNSAID = object()
"""In place of a payload that the caller is not given."""
COMMIT, GIVE, OFFER, DIE = "commit", "give back", "offer", "die"


class Moment(NamedTuple):
    """A place in the order of all moments of the round, and the time."""

    tick: int
    time: float


NEVER = Moment(10**12, math.inf)


@dataclass(eq=False)
class Claimed:
    """A request for an item, and how the claim ended if it was NEW.

    Attributes:
        state: NEW, SEEN, BUSY, FAILED, or UNKNOWN if it raised.
        given: The payload that was given with it; of `expired` what came with the item.
        got: The payload that the answer had.
        from_expired: Whether `expired` gave it.
        how: COMMIT, GIVE, OFFER (it is to come back by `expired`) or DIE.
        became: OK, LOST or UNKNOWN.
        began, ended: When the end of the claim was asked for, and answered.
    """

    start: Moment
    end: Moment
    state: str
    given: object = None
    got: object = None
    fence: int = 0
    near: bool = False
    from_expired: bool = False
    how: str = DIE
    became: str = UNKNOWN
    began: Moment = NEVER
    ended: Moment = NEVER

    def __repr__(self) -> str:
        return (
            f"[{self.start.tick}..{self.end.tick} {self.state} {self.fence % 10**9} {self.given!r}"
            f"/{self.got!r}{' expired' if self.from_expired else ''} {self.how} {self.became} "
            f"{self.began.tick}..{self.ended.tick}]"
        )


class Look(NamedTuple):
    """What was said of an item besides claims: THERE, NOT_THERE, ADDING, or TRIED."""

    start: Moment
    end: Moment
    said: str
    near: bool
    call: str = ""


@dataclass
class History:
    """All that happened in a round; the seed gives everything that is random."""

    seed: str
    faults: bool = False
    claims: dict[Any, list[Claimed]] = field(default_factory=lambda: defaultdict(list))
    looks: dict[Any, list[Look]] = field(default_factory=lambda: defaultdict(list))
    resets: list[tuple[Moment, Moment]] = field(default_factory=list)
    moves: list[tuple[Moment, Moment]] = field(default_factory=list)
    expiries: list[tuple[Moment, Moment]] = field(default_factory=list)
    discards: dict[Any, list[tuple[Moment, Moment]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    retried: dict[Any, list[tuple[Moment, Moment]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    dropped: dict[Any, list[tuple[Moment, Moment]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    unnamed: list[Claimed] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    what: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._ticks = itertools.count()
        # Who attaches while the filter has its other name makes one.
        self.at_home = threading.Lock()
        choose = self.random.choice
        self.kind = choose(list(KINDS))
        self.shape = KINDS[self.kind] | {"shards": choose((1, 3))}
        self.strategies = STRATEGIES[self.kind]
        self.near = choose((True, False))
        self.on_lost = choose(("raise", "recreate"))
        self.resetting, self.moving = choose(((False, False), (True, False), (False, True)))
        if self.moving:
            # An object that makes the filter anew would take the name from the one that moves.
            self.on_lost = "raise"

    def __str__(self) -> str:
        changes = "resets" * self.resetting + "moves" * self.moving
        return (
            f"seed {self.seed}: {self.kind} {self.shape} near={self.near} on_lost={self.on_lost} "
            f"{changes} faults={self.faults}"
        )

    def now(self) -> Moment:
        return Moment(next(self._ticks), time.monotonic())

    def item(self, rng: random.Random, *namespaces: str) -> Any:
        """Return an item for anybody to claim."""
        item = f"{rng.choice(namespaces or NAMESPACES)} {rng.randrange(ITEMS // 5)}"
        return item.encode() if item.startswith(BYTES) else item

    # -- judging ---------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """Judge all that was said while the round lasted."""
        found = []
        for item in self.claims.keys() | self.looks.keys():
            found += [f"{item!r}: {wrong}" for wrong in _Judge(self, item).violations()]
        return found

    def left(self, item: Any) -> tuple[bool, bool]:
        """Return whether an item must be in the filter at the end, and whether it may."""
        return _Judge(self, item).left()

    def must_be_offered(self, item: Any) -> Claimed | None:
        """Return the claim that has to come back by `expired`, None if none has to for certain."""
        return _Judge(self, item).must_be_offered()


class _Judge:
    """What is known of one item."""

    def __init__(self, history: History, item: Any) -> None:
        self.history = history
        self.item = item
        # Of a search that raised nobody knows which items it has claimed.
        asked = [*history.claims[item], *history.unnamed]
        self.claims = sorted(asked, key=lambda one: one.start)
        self.looks = sorted(history.looks[item])
        self.dropped = history.dropped[item]
        self.retried = history.retried[item]
        ends = sorted([*history.resets, *history.discards[item]])
        self.starts = [start.tick for start, _ in ends]
        self.ends = [end.tick for _, end in ends]
        self.times = [end.time for _, end in ends]
        self.news = [one for one in self.claims if one.state == NEW]
        for one in self.news:
            # A commit that was carried out finds another generation when it is repeated.
            spans = [*history.moves, *history.resets]
            if history.faults and one.became == LOST and self.between(spans, one.began, one.ended):
                one.became = UNKNOWN
        self.commits = [
            one for one in self.news if one.how == COMMIT and one.became in {OK, UNKNOWN}
        ]
        # By when an item is in the filter for certain, or may be, and in which lives.
        adds = [look for look in self.looks if look.said in {ADDING, TRIED}]
        self.certain = [(one.began, one.ended) for one in self.commits if one.became == OK]
        self.possible = [(one.began, one.ended) for one in self.commits]
        self.possible += [(look.start, NEVER if look.said == TRIED else look.end) for look in adds]
        self.certain += [(look.start, look.end) for look in adds if look.said == ADDING]

    def first(self, start: Moment, *, near: bool = False) -> int:
        """Return the first life that a call may be about."""
        first = bisect_left(self.ends, start.tick)
        return min(first, bisect_left(self.times, start.time - STALENESS)) if near else first

    def last(self, end: Moment) -> int:
        return bisect_left(self.starts, end.tick)

    def is_there(self, start: Moment, end: Moment) -> bool:
        """Tell whether an item was there for certain all the time of a call."""
        life = self.first(start)
        return life == self.last(end) and any(
            ended < start and self.first(began) == life for began, ended in self.certain
        )

    def may_be_there(self, start: Moment, end: Moment, *, near: bool) -> bool:
        first = self.first(start, near=near)
        return any(began < end and self.last(ended) >= first for began, ended in self.possible)

    def left(self) -> tuple[bool, bool]:
        now = self.history.now()
        return self.is_there(now, now), self.may_be_there(now, now, near=False)

    def between(self, spans: list[tuple[Moment, Moment]], start: Moment, end: Moment) -> bool:
        return any(first <= end and last >= start for first, last in spans)

    def violations(self) -> list[str]:
        found = [f"{what}: {one}" for one in self.claims if (what := self.judge_claim(one))]
        found += [f"{what}: {look}" for look in self.looks if (what := self.judge_look(look))]
        for one, other in itertools.permutations(self.news, 2):
            found += self.compare(one, other)
        known = self.history
        spans = (known.resets, known.moves, known.discards[self.item], self.dropped, self.retried)
        changes = [[(start.tick, end.tick) for start, end in several] for several in spans]
        return [f"{wrong}\n  {self.claims}\n  {self.looks}\n  {changes}" for wrong in found]

    def judge_claim(self, one: Claimed) -> str:
        """Return what is wrong with an answer to a claim, or with how it ended."""
        if one.state == NEW and self.is_there(one.start, one.end):
            return "denied"
        if one.state == SEEN and not self.may_be_there(one.start, one.end, near=one.near):
            return "invented"
        if one.state == BUSY and not self.may_have_owner(one):
            return "no owner"
        if one.became == LOST and not self.may_be_refused(one):
            return "no owner"
        return self.payload(one)

    def judge_look(self, look: Look) -> str:
        if look.said == NOT_THERE and self.is_there(look.start, look.end):
            return "denied"
        if look.said == THERE and not self.may_be_there(look.start, look.end, near=look.near):
            return "invented"
        return ""

    def compare(self, one: Claimed, other: Claimed) -> list[str]:
        """Judge two NEW claims."""
        found = []
        if 0 < other.fence <= one.fence and one.end < other.start:
            found.append(f"fence: {one} {other}")
        ends = (*self.history.expiries, *self.history.resets)
        if (
            one.end < other.start
            and other.end < one.began
            and not self.between(list(ends), one.start, other.end)
        ):
            found.append(f"two owners: {one} {other}")
        done = [each for each in (one, other) if each.how == COMMIT and each.became == OK]
        if len(done) > 1 and one.start <= other.start:
            lives = {(self.first(each.began), self.last(each.ended)) for each in done}
            if len(lives) == 1 and all(first == last for first, last in lives):
                found.append(f"two commits: {one} {other}")
        return found

    def may_have_owner(self, busy: Claimed) -> bool:
        return any(
            (one.state in {NEW, UNKNOWN} or self.may_have_tried(one))
            and one.start < busy.end
            and not (self.is_over(one) and one.ended < busy.start)
            and not any(one.end < start and end < busy.start for start, end in self.history.resets)
            for one in self.claims
            if one is not busy
        )

    def may_have_tried(self, one: Claimed) -> bool:
        """Tell whether an answer may be that to a repetition: what came before may be lost."""
        return self.history.faults or self.between(
            [*self.history.moves, *self.history.resets], one.start, one.end
        )

    def is_over(self, one: Claimed) -> bool:
        """Tell whether a claim was ended for certain; after a move its worker cannot end it."""
        moved = self.between(self.history.moves, one.start, one.ended)
        return one.became in {OK, LOST} and (not moved or (one.how, one.became) == (COMMIT, OK))

    def may_be_refused(self, lost: Claimed) -> bool:
        spans = [*self.history.resets, *self.history.moves, *self.dropped, *self.retried]
        # A claim that is over goes when its item is seen, also by a search for what is over.
        was_seen = any(began < lost.ended for began, _ in self.possible) and self.between(
            self.history.expiries, lost.start, lost.ended
        )
        return (
            was_seen
            or self.between(spans, lost.start, lost.ended)
            or any(
                (one.state in {NEW, UNKNOWN} or self.may_have_tried(one))
                and one.start < lost.ended
                and one.end > lost.start
                for one in self.claims
                if one is not lost
            )
        )

    def payload(self, one: Claimed) -> str:
        """Return what is wrong with the payload of an answer."""
        if one.got is UNSAID:
            return ""
        if one.state == NEW and not one.from_expired:
            return "" if one.got == one.given else "payload: not the own"
        if one.state in {NEW, BUSY}:
            # What a first try took, whose reply was lost, another may have taken over.
            mine = self.history.faults or self.history.moving
            known = [each.given for each in self.claims if each is not one or mine]
            return "" if one.got in known else "payload: of nobody"
        return ""

    def must_be_offered(self) -> Claimed | None:
        """Return the last claim of an item, if it ended so that it is offered."""
        if not self.news:
            return None
        last = max(self.news, key=lambda one: one.end)
        now = self.history.now()
        others = [one for one in self.news if one is not last]
        is_offered = (
            last.how == DIE
            or (last.how == OFFER and last.became == OK)
            or (last.how == COMMIT and last.became == LOST and self.history.moving)
        )
        may_have_ended = (
            any(one.end > last.start for one in others)
            or any(one.began < NEVER and one.ended > last.start for one in others)
            or self.between([*self.history.resets, *self.dropped], last.start, now)
            # An open claim of an item that is there for a while goes, if it is over then.
            or any(ended > last.start for _, ended in self.possible)
        )
        return last if is_offered and not may_have_ended else None
