"""Workers claim an item and commit it, give it back, crash or are too late, in every order.

Of the claims that are not over one is open; whoever was overtaken commits no more; what was
committed is seen; and the item can be had again when the lease is over, whatever got lost.
"""

from __future__ import annotations

import random
import re
import time

import pytest
from claim_rules import AFTER_LEASE, AT_ONCE, COUNTS, NEVER, Act, Item, after
from claim_tools import let_expire
from explorer import (
    AFTER,
    BEFORE,
    CANCELLED,
    LATE,
    Cores,
    Operation,
    contents_of,
    core_of,
    explore_living,
    followed_by,
    is_linearizable,
    judge_once,
    put_back,
    wander,
)
from flat_options import given
from set_world import WINDOW

from bloomlock import BloomFilter
from bloomlock.errors import ClaimLostError
from bloomlock.filters._sync.claims import Claim

ITEM, LEASE = "item", 600
PROBE = 9
EVER = 4 * 10**15
"""A fence after all times, so that the next ones do not depend on the microsecond."""
CLAIMS = {"claim": 0, "claim once": 1, "claim twice": 2}
"""How an item is claimed: after how many attempts it is FAILED."""
GIVEN_BACK = {
    "give back": (None, None),
    "withdraw": (None, False),
    "offer": (None, True),
    "fail": ("why", None),
    "fail and offer": ("why again", True),
}
"""How a claim is given back: with which error, and whether the item is offered."""
OF_THE_ITEM = ("add", "discard", "exists")
OF_THE_LISTS = {"retry": "retry_failed", "drop": "drop_failed"}


class Workers:
    def __init__(self, client, shape):
        self.client = client
        client.flushdb()
        shape = {"capacity": 50, "error_rate": 1e-9, **shape}
        made = BloomFilter("x", client=client, **given(shape))
        assert made.add("another")
        with made.claim("another one"):
            pass
        (fence,) = client.scan_iter("*:fence")
        client.set(fence, EVER)
        self._before = made.count_claims()
        self._contents = contents_of(client)
        self._is_timed = {}

    def open(self):
        return BloomFilter.open("x", client=self.client, on_lost="recreate")

    def worker(self, number, names):
        """Return a program; an unanswered step is repeated, and so its own claim is had again."""
        made, claim, token, is_offered = self.open(), None, None, False
        unanswered = None
        for place, name in enumerate(names):
            act = self._act(name, unanswered or (number, place), token, is_offered)
            if act.token is None:
                continue
            answer = None
            while answer is None:
                highest = max(self._fences, default=0)
                answer = yield Operation(act, self._core(made, name, act, claim))
                if answer is None and name == "take over":
                    # The next claim has this one, also if no take-over finds it.
                    unanswered = act.token
                if claim is not None and claim.ended == "unknown":
                    return
                if claim is not None and claim.ended == "committed":
                    # Also of a call that is cut off after that, when it looks at the fill.
                    break
            if act.name in ("commit", "give back"):
                claim = token = None
            if name.startswith(("claim", "take over")) and show(answer)[0] == "new":
                claim, token, is_offered = answer, act.token, name == "take over"
                unanswered = None
                fence = answer.hold.fence
                assert fence > highest, "fences rise"
                self._fences.add(fence)

    def _act(self, name, own, token, is_offered):
        if name in CLAIMS:
            return Act("claim", own, str(own), CLAIMS[name])
        if name in GIVEN_BACK:
            error, offer = GIVEN_BACK[name]
            offered = {None: AFTER_LEASE if is_offered else NEVER, True: AT_ONCE, False: NEVER}
            return Act("give back", token, error=error, offered=offered[offer])
        return Act(name, token if name in ("commit", "extend") else own)

    def _core(self, made, name, act, claim):
        if act.name == "claim":
            limit, payload = act.limit or None, act.payload
            more = {"ttl": LEASE, "renew": False, "payload": payload, "max_attempts": limit}
            return core_of(made, "claim", ITEM, **more)
        if name == "take over":
            return core_of(made, "claim_expired", limit=1, ttl=LEASE, renew=False)
        if name in OF_THE_ITEM:
            return core_of(made, name, ITEM)
        if name in OF_THE_LISTS:
            return core_of(made, OF_THE_LISTS[name], [ITEM])
        face = Claim(claim, made._run)
        if name in GIVEN_BACK:
            error, offer = GIVEN_BACK[name]
            return core_of(face, "abandon", error, offer=offer)
        return core_of(face, name)

    def start(self, programs, faults=0, ends=0, fates=(BEFORE, AFTER), **extra):
        """Return what brings all to the start; `extra`: how often it is cleared, or filled."""
        acts = {
            "lease ends": (ends, lambda: let_expire(self.client)),
            "clear": (extra.get("clear", 0), lambda: self.open().clear()),
            "fill": (extra.get("fill", 0), lambda: self.open().update(map(str, range(15)))),
        }

        def start():
            put_back(self.client, self._contents)
            self._fences = set()
            return Cores(
                self.client,
                [self.worker(number, names) for number, names in enumerate(programs)],
                faults=faults,
                fates=fates,
                resends=True,
                extra=acts,
                answers=(ClaimLostError,),
                show_answer=show,
                show_contents=self.without_times,
                blur=lambda replies: re.sub(r"\d{3,}", "N", replies),
            )

        return start

    def without_times(self, contents):
        """Return what the server has, and of leases only whether they are over."""
        shown = dict(contents)
        for key in shown:
            if key not in self._is_timed:
                self._is_timed[key] = self.client.type(key) == b"zset"
            if self._is_timed[key]:
                found, now_ms = self.client.zrange(key, 0, -1, withscores=True), 1000 * time.time()
                shown[key] = tuple((member, score <= now_ms) for member, score in found)
        return tuple(shown.items())

    def probe(self, names, *, is_cleared):
        """Let another worker do some things, and return what it is answered."""
        fresh, claims, answers = self.open(), [], []
        for name in names:
            answer = None
            if name == "lease ends":
                let_expire(self.client)
            elif name == "look":
                answer = self.look(fresh, is_new=is_cleared)
            elif name == "exists":
                answer = fresh.exists(ITEM)
            elif name == "take over":
                claims += fresh.claim_expired(1, renew=False)
                answer = show([one._session for one in claims])
            elif name == "claim":
                answer = show(fresh.claim(ITEM, renew=False)._session)
            elif claims:
                answer = fresh.commit_many([claims.pop()]) and "done"
            else:
                continue
            answers.append((name, answer))
        return answers

    def look(self, found, *, is_new):
        counts = found.count_claims()
        more = [
            getattr(counts, name) - getattr(self._before, name) * (not is_new) for name in COUNTS
        ]
        return (
            [(one.payload, one.attempts, one.remaining == 0) for one in found.open_claims()],
            [(one.attempts, one.error, one.payload, one.is_final) for one in found.failed()],
            tuple(more),
        )

    def check(self, names):
        """Return the judge: whatever comes after, the item can be had when a lease is over."""

        def judge(history, _, answers):
            history = followed_by(history, answers, PROBE)
            assert is_linearizable(history, Item(), after), history

        return judge_once(
            lambda _, history: "clear" in [one.kind for one in history],
            lambda is_cleared: self.probe(names, is_cleared=is_cleared),
            judge,
        )


def show(answer):
    """Return of an answer what the history has."""
    if isinstance(answer, list):
        return show(answer[0]) if answer else ("nothing", 0, None)
    if answer == "ClaimLostError":
        return "lost"
    if isinstance(answer, (bool, str)) or answer is None:
        return answer
    state = answer.state.value
    payload = answer.payload if state in ("new", "busy") else None
    return state, answer.attempts, payload


ONCE = ["claim", "commit"]
AT_ANY_STATE = ("lease ends", "exists", "claim")
LOST = (BEFORE, AFTER)
WORLDS = [
    (ONCE, ONCE, LOST, 1),
    (ONCE, ["claim", "give back"], (CANCELLED,), 1),
    (ONCE, ["take over", "commit"], (), 2),
    (["claim", "extend", "commit"], ONCE, (), 2),
    (ONCE, ["claim", "commit", "discard"], (), 1),
    (ONCE, ["discard"], LOST, 0),
    (ONCE, ["add", "claim", "discard", "add"], (), 1),
    (["claim once", "commit"], ["claim", "retry", "claim", "give back"], (), 1),
    (["claim once", "commit"], ["claim", "claim twice", "give back"], (), 1),
]


@pytest.mark.parametrize(
    ("shape", "one", "other", "fates", "ends"),
    [
        *(({}, *world) for world in WORLDS),
        pytest.param(
            {"on_full": "grow"}, ONCE, ["claim", "give back"], (), 1, marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_two_workers_in_every_order(r, shape, one, other, fates, ends):
    workers = Workers(r, shape)
    start = workers.start([one, other], bool(fates), ends, fates)
    explored = explore_living(start, workers.check(AT_ANY_STATE))
    print(explored)
    assert explored.states > 20


@pytest.mark.long
@pytest.mark.parametrize("third", [ONCE, ["take over", "give back"]], ids=str)
def test_three_workers_in_every_order(r, third):
    workers = Workers(r, {})
    start = workers.start([ONCE, ONCE, third], 1, 2)
    print(explore_living(start, workers.check(AT_ANY_STATE)))


KINDS = {
    "plain": {},
    "shards": {"shards": 3},
    "grows": {"capacity": 1, "on_full": "grow", "up_to": 85},
    "window": {**WINDOW, "shards": 2},
}
AT_THE_END = (
    *("exists", "look", "lease ends", "take over", "commit"),
    *("look", "claim", "commit", "look"),
)
NAMES = (*CLAIMS, "take over", "commit", "extend", *GIVEN_BACK)
NAMES = (*NAMES * 2, *OF_THE_LISTS, *OF_THE_ITEM)
WALKS, MANY = 60, 3000


@pytest.mark.parametrize("kind", KINDS)
def test_claims_go_by_the_rules(r, kind, seed, is_long):
    """They do all that workers can; requests are lost or cancelled, and others clear the filter."""
    workers = Workers(r, KINDS[kind])
    judge = workers.check(AT_THE_END)
    for number in range(MANY if is_long else WALKS):
        chance = random.Random(f"{seed} {number}")
        programs = [
            ["claim", *chance.choices(NAMES, k=chance.choice([2, 4, 6]))]
            for _ in range(chance.choice([2, 3]))
        ]
        faults, ends = chance.choice([0, 0, 1, 2, 3]), chance.choice([0, 1, 2, 3])
        fates = (*LOST, LATE, CANCELLED)
        start = workers.start(programs, faults, ends, fates, clear=number % 4 == 0, fill=1)
        wander(start, judge, f"{seed} {number}")
