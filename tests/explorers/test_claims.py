"""Workers claim an item and commit it, give it back, crash or are too late, in every order.

Of the claims that are not over one is open; whoever was overtaken commits no more; what was
committed is seen; and the item can be had again when the lease is over, whatever got lost.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from explorer import (
    Cores,
    Done,
    Operation,
    contents_of,
    core_of,
    explore_living,
    is_linearizable,
    put_back,
)
from flat_options import given
from set_world import START

from bloomlock import BloomFilter
from bloomlock.errors import ClaimLostError
from bloomlock.filters._sync.claims import Claim

ITEM, LEASE = "item", 600
PROBE = 9
EVER = 4 * 10**15
"""A fence after all times, so that the next ones do not depend on the microsecond."""


class Item(NamedTuple):
    """What an item is for its workers: done, or who has it, and whether the lease is over.

    Of one that was discarded no commit is accepted that is repeated, or late.
    """

    is_done: bool = False
    holder: int | None = None
    is_over: bool = False
    lost: frozenset[int] = frozenset()
    is_dead: bool = False

    def taken(self, by: int | None) -> Item:
        lost = self.lost if self.holder is None else self.lost | {self.holder}
        return Item(self.is_done, by, False, lost, self.is_dead)


def carried_out(one: Done, item: Item) -> tuple[object, Item]:
    """Return what an operation answers, and the item after it."""
    if one.kind == "exists":
        return item.is_done, item
    if one.kind == "discard":
        return item.is_done, item._replace(is_done=False, is_dead=item.is_done or item.is_dead)
    if one.kind in ("claim", "take over"):
        return claimed(one, item)
    return ended(one, item)


def claimed(one: Done, item: Item) -> tuple[object, Item]:
    if one.kind == "take over":
        is_offered = item.is_over and not item.is_done
        return ("new", item.taken(one.client)) if is_offered else ("nothing", item)
    if item.is_done:
        return "seen", item.taken(None) if item.is_over else item
    if item.holder in (None, one.client):
        return "new", item._replace(holder=one.client, is_over=False)
    return ("new", item.taken(one.client)) if item.is_over else ("busy", item)


def ended(one: Done, item: Item) -> tuple[object, Item]:
    is_mine = item.holder == one.client
    if one.kind == "lease ends":
        return None, item._replace(is_over=item.holder is not None)
    if one.kind == "commit":
        is_late = item.holder is not None or item.is_dead
        is_lost = one.client in item.lost or (is_late and not is_mine)
        return ("lost", item) if is_lost else ("done", Item(True, lost=item.lost))
    if not is_mine:
        return "lost", item
    keeps = one.kind == "extend"
    return "done", item._replace(holder=one.client if keeps else None, is_over=False)


def after(one: Done, item: Item) -> list[Item]:
    answer, then = carried_out(one, item)
    return [then] if one.answer in (None, answer) else []


class Workers:
    """A filter and its workers on a server whose clock the walk moves."""

    def __init__(self, client, clocks, shape):
        self.client, self.clocks = client, clocks
        clocks.set(START)
        client.flushdb()
        made = clocks.of(BloomFilter("x", 50, 1e-9, client=client, **given(shape)))
        assert made.add("another")
        with made.claim("another one"):
            pass
        (counts,) = client.scan_iter("*:counts")
        client.hset(counts, "fence", EVER)
        self._contents = contents_of(client)
        self._cores = None
        self._is_timed = {}

    def worker(self, acts):
        """Return a program; an unanswered step is repeated, and so its own claim is had again."""
        made = self.clocks.of(BloomFilter.open("x", client=self.client))
        claims = []
        for act in acts:
            answer = None
            while answer is None:
                highest = max(self._fences, default=0)
                answer = yield Operation(act, self._core(made, act, claims))
                if claims and claims[0].ended == "unknown":
                    return
            if act in ("claim", "take over") and show(answer) == "new":
                claims = [answer]
                fence = answer.hold.fence
                assert fence > highest, "fences rise"
                self._fences.add(fence)
            elif not claims:
                return

    def _core(self, made, act, claims):
        if act == "claim":
            return core_of(made, "claim", ITEM, ttl=LEASE, renew=False)
        if act == "take over":
            return core_of(made, "claim_expired", limit=1, ttl=LEASE, renew=False)
        if act in ("discard", "exists"):
            return core_of(made, act, ITEM)
        claim = Claim(claims[0], made._run)
        return core_of(claim, {"give back": "abandon"}.get(act, act))

    def start(self, programs, faults=0, ends=0):
        def start():
            self.close()
            self.clocks.set(START)
            put_back(self.client, self._contents)
            self._fences = set()
            self._cores = Cores(
                self.client,
                [self.worker(acts) for acts in programs],
                faults=faults,
                extra={"lease ends": (ends, self.end_lease)},
                answers=(ClaimLostError,),
                show_answer=show,
                show_contents=self.without_times,
                blur=lambda replies: re.sub(r"\d{3,}", "N", replies),
            )
            return self._cores

        return start

    def end_lease(self):
        self.clocks.set(self.clocks() + LEASE + 1)

    def without_times(self, contents):
        """Return what the server has, and of leases only whether they are over."""
        shown = dict(contents)
        for key in shown:
            if key not in self._is_timed:
                self._is_timed[key] = self.client.type(key) == b"zset"
            if self._is_timed[key]:
                now = self.clocks()
                found = self.client.zrange(key, 0, -1, withscores=True)
                shown[key] = tuple((member, score < now * 1000) for member, score in found)
        return tuple(shown.items())

    def check(self):
        """Return the judge: whatever comes after, the item can be had when a lease is over."""
        judged = set()

        def check(world):
            history, now = world.operations(), self.clocks()
            if (case := (world.shown, tuple(history))) in judged:
                return
            judged.add(case)
            self.end_lease()
            fresh = BloomFilter.open("x", client=self.client)
            for kind in ("lease ends", "exists", "claim"):
                begun, answer = world.tick(), None
                if kind == "exists":
                    answer = fresh.exists(ITEM)
                elif kind == "claim":
                    answer = fresh.claim(ITEM, renew=False).state.value
                history.append(Done(begun, world.tick(), kind, answer, PROBE))
            world.untick()
            assert is_linearizable(history, Item(), after), history
            self.clocks.set(now)
            put_back(self.client, world.found)

        return check

    def close(self):
        if self._cores is not None:
            self._cores.close()


def show(answer):
    """Return of an answer what the history has."""
    if isinstance(answer, list):
        return show(answer[0]) if answer else "nothing"
    if answer == "ClaimLostError":
        return "lost"
    return answer if isinstance(answer, (bool, str)) or answer is None else answer.state.value


ONCE = ["claim", "commit"]
WORLDS = [
    (ONCE, ONCE, 1, 1),
    (ONCE, ["claim", "give back"], 1, 1),
    (ONCE, ["take over", "commit"], 0, 2),
    (["claim", "extend", "commit"], ONCE, 0, 2),
    (ONCE, ["claim", "commit", "discard"], 0, 1),
    (ONCE, ["discard"], 1, 0),
]


@pytest.mark.parametrize(
    ("shape", "one", "other", "faults", "ends"),
    [
        *(({}, *world) for world in WORLDS),
        pytest.param(
            {"on_full": "grow"}, ONCE, ["claim", "give back"], 0, 1, marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_two_workers_in_every_order(stopped, shape, one, other, faults, ends):
    workers = Workers(*stopped, shape)
    try:
        explored = explore_living(workers.start([one, other], faults, ends), workers.check())
    finally:
        workers.close()
    print(explored)
    assert explored.states > 20


@pytest.mark.long
@pytest.mark.parametrize("third", [ONCE, ["take over", "give back"]], ids=str)
def test_three_workers_in_every_order(stopped, third):
    workers = Workers(*stopped, {})
    print(explore_living(workers.start([ONCE, ONCE, third], 1, 2), workers.check()))
