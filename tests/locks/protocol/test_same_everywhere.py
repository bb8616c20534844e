"""The scripts and the native commands do what the pure transitions do."""

from __future__ import annotations

from typing import NamedTuple

import lock_ways
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import wait_until

from bloomlock.keys import LockKeys
from bloomlock.locks.protocol.model import (
    NO_CHANNEL,
    AcquireRequest,
    Busy,
    Granted,
    ReleaseRequest,
)

LEASE_MS = 600_000
TOLERANCE_MS = 60_000
CLIENTS = 5
# A client's group and whether it joins past waiters: two who exclude all, two readers, one owner.
KINDS = ((b"", False), (b"", False), (b"r", False), (b"r", False), (b"o", True))


class Operation(NamedTuple):
    what: str
    client: int
    round: int
    waits: bool
    lease_ms: int


OPERATIONS = st.builds(
    Operation,
    st.sampled_from(
        ["acquire"] * 8
        + ["release"] * 5
        + ["renew", "expire", "expire holder", "kill waiter", "age waiters", "forget fence"]
        + ["deafen", "deafen", "listen"]
    ),
    st.integers(0, CLIENTS - 1),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([LEASE_MS, 2 * LEASE_MS]),
)


def read_payload(payload):
    """Return whose grant a message announces, and the grant."""
    token, fence, waiters = payload.split(b" ")
    return token, Granted(int(fence), waiters == b"1")


def story(*steps, leaves):
    """Operations as text: what, and the number of the client; with its round after a dot.

    Each is carried out twice, but for what is to be done once. Who releases leaves the queue too,
    or not.
    """
    told = []
    for step in steps:
        what, _, who = step.rpartition(" ")
        client, _, turn = who.partition(".")
        is_repeated, what = not what.startswith("once "), what.removeprefix("once ")
        waits = what == "queue" or (what == "release" and leaves)
        what = "acquire" if what == "queue" else what
        told.append((Operation(what, int(client), int(turn or 0), waits, LEASE_MS), is_repeated))
    return told


STORIES = {
    "dead first": ("acquire 0", "queue 1", "queue 2", "kill waiter 1", "release 0"),
    "dead reader": ("acquire 0", "queue 2", "queue 3", "queue 1", "kill waiter 3", "release 0"),
    "dead writer": ("acquire 2", "queue 1", "queue 3", "kill waiter 1", "queue 3"),
    "all dead": ("acquire 0", "queue 1", "kill waiter 1", "expire 0", "acquire 0.1"),
    "dead and back": ("acquire 0", "queue 1", "queue 2", "kill waiter 1", "queue 1", "release 0"),
    "back too late": ("acquire 0", "queue 1", "queue 2", "kill waiter 1", "release 0", "queue 1"),
    "ran out": ("acquire 0", "queue 1", "queue 2", "expire 0", "queue 2", "queue 1"),
    "reader ran out": ("acquire 2", "acquire 3", "queue 1", "expire holder 2", "renew 2",
                       "release 3"),
    "last reader ran out": ("acquire 2", "queue 1", "queue 3", "expire holder 2", "queue 1"),
    "readers after a writer": ("acquire 0", "queue 2", "queue 1", "queue 3", "release 0",
                               "release 2", "acquire 2.1", "release 3"),
    "readers wait": ("acquire 2", "queue 1", "acquire 3", "queue 3", "release 2"),
    "owners join": ("acquire 4", "queue 1", "acquire 4.1", "acquire 2", "release 4", "release 4.1"),
    "renewals": ("acquire 2", "queue 1", "acquire 4", "renew 2", "release 2", "renew 1", "renew 2",
                 "renew 4"),
    "trial": ("acquire 0", "queue 1", "release 0", "queue 1", "queue 3", "queue 2", "release 1"),
    "handed on when asking": ("acquire 0", "queue 1", "expire 0", "queue 1", "queue 3", "queue 2",
                              "expire 0", "queue 3"),
    "stranger": ("acquire 0", "queue 1", "release 2", "release 0.1", "renew 1", "renew 2"),
    "never came back": ("acquire 0", "once queue 1", "queue 2", "age waiters 0", "release 0"),
    # Of those who asked once there are no marks.
    "plain": ("acquire 0", "once queue 1", "once queue 0.1", "release 0", "release 1",
              "release 0.1"),
    "none came back": ("acquire 0", "once queue 1", "age waiters 0", "once queue 0.1", "release 0"),
    "gone since": ("acquire 0", "once queue 1", "deafen 1", "once queue 0.1", "release 0"),
    "readers once": ("acquire 0", "once queue 2", "once queue 3", "once queue 1", "release 0"),
    "only deaf": ("acquire 0", "queue 1", "deafen 1", "release 0", "acquire 2"),
    "deaf first": ("acquire 0", "queue 1", "queue 2", "deafen 1", "release 0", "release 2",
                   "acquire 0.1"),
    "deaf and back": ("acquire 0", "queue 1", "queue 2", "deafen 1", "queue 1", "release 0"),
    "deaf and heard again": ("acquire 0", "queue 1", "deafen 1", "queue 1", "listen 1", "queue 1",
                             "queue 2", "deafen 1", "release 0"),
    "deaf from the first": ("deafen 1", "acquire 0", "queue 1", "queue 2", "release 0"),
    "deaf writer": ("acquire 2", "queue 1", "deafen 1", "queue 3", "acquire 2.1", "release 2",
                    "release 3", "queue 1"),
    "deaf reader": ("acquire 0", "queue 2", "queue 3", "queue 1", "deafen 2", "release 0"),
    "deaf first, who asks is last": ("acquire 0", "queue 1", "deafen 1", "expire 0", "queue 2"),
    "fence forgotten": ("acquire 0", "forget fence 0", "acquire 0", "queue 1", "release 0"),
}  # fmt: skip


def channel_of(way, client):
    return b"%b.%d" % (way.encode(), client)


def asking_of(operation, way):
    group, may_join = KINDS[operation.client]
    token = b"t%d.%d" % (operation.client, operation.round)
    channel = channel_of(way, operation.client) if operation.waits else b""
    # The lease is part of the record, which stays the same while somebody waits.
    lease_ms = LEASE_MS if operation.waits else operation.lease_ms
    # Every second one is on trial.
    return AcquireRequest(
        token, lease_ms, group, may_join, channel, operation.client % 2 * LEASE_MS // 2
    )


def carry_out(way, name, operation):
    asking = asking_of(operation, name)
    actions = {
        "acquire": lambda: way.acquire(asking),
        "release": lambda: way.release(ReleaseRequest(asking.token, asking.group, asking.record)),
        "renew": lambda: way.renew(asking.token, asking.group, operation.lease_ms),
        "expire": way.expire,
        "expire holder": lambda: way.expire_holder(asking.token),
        "age waiters": way.age_waiters,
        "deafen": lambda: None,
        "listen": lambda: None,
        "kill waiter": lambda: way.kill_waiter(asking.token),
        "forget fence": way.forget_fence,
    }
    return actions[operation.what]()


def without_clock(answer):
    """An answer without its fence, and with its time in steps far longer than a test."""
    if isinstance(answer, Granted):
        return ("granted", answer.waiters)
    if isinstance(answer, Busy):
        return ("busy", answer.position, round(answer.remaining_ms / TOLERANCE_MS))
    return answer


def now_us(client):
    seconds, microseconds = client.time()
    return seconds * 1_000_000 + microseconds


class Comparison:
    """One lock for each way; after each operation they are held together."""

    def __init__(self, client):
        client.flushall()
        self.client = client
        self.pure = lock_ways.PureWay()
        self.ways = {
            name: lock_ways.ServerWay(client, LockKeys.of(name), missing())
            for name, missing in lock_ways.WAYS.items()
        }
        self.fences = dict.fromkeys(self.ways, 0)
        # What follows all channels counts as nobody who listens on one of them.
        self.heard = client.pubsub()
        self.heard.psubscribe("*")
        assert self.heard.get_message(timeout=60)["type"] == "psubscribe"
        self.ears = client.pubsub()
        for number in range(CLIENTS):
            self.listen(number)

    def listen(self, number):
        channels = [channel_of(name, number) for name in self.ways]
        self.ears.subscribe(*channels)
        self.pure.silent.discard(channel_of("pure", number))
        self.wait_for_ears(channels, 1)

    def deafen(self, number):
        channels = [channel_of(name, number) for name in self.ways]
        self.ears.unsubscribe(*channels)
        self.pure.silent.add(channel_of("pure", number))
        self.wait_for_ears(channels, 0)

    def wait_for_ears(self, channels, count):
        wait_until(
            lambda: all(found == count for _, found in self.client.pubsub_numsub(*channels)), 60
        )

    def step(self, operation):
        if operation.what == "listen":
            self.listen(operation.client)
        elif operation.what == "deafen":
            self.deafen(operation.client)
        self.pure.now_us = now_us(self.client)
        self.pure.announced.clear()
        expected = without_clock(carry_out(self.pure, "pure", operation))
        told = [(made.token, made.grant.waiters) for made in self.pure.announced]
        for name, way in self.ways.items():
            answer = carry_out(way, name, operation)
            assert without_clock(answer) == expected, name
            assert way.picture() == self.pure.picture(), name
            marked = {mark.split(b" ")[-4] for mark in self.client.zrange(way.keys.alive, 0, -1)}
            assert marked == {mark.split(b" ")[-4] for mark in self.pure.state.alive}, name
            assert way.leases() == pytest.approx(self.pure.leases(), abs=TOLERANCE_MS), name
            messages = self.announcements(len(told), name)
            assert [(token, grant.waiters) for token, grant in messages] == told, name
            grants = [grant.fence for _, grant in messages]
            self.check_fences(name, operation, answer, grants)

    def announcements(self, count, name):
        """Those of one way, of which there must be so many."""
        found = []
        while len(found) < count:
            message = self.heard.get_message(timeout=60)
            assert message is not None, f"{name}: {len(found)} of {count} announcements came"
            assert message["channel"].startswith(name.encode() + b".")
            found.append(read_payload(message["data"]))
        return found

    def check_fences(self, name, operation, answer, grants):
        if operation.what == "forget fence":
            # It goes on from the server's clock, which is ahead of any number of grants.
            return
        if isinstance(answer, Granted) and answer.fence not in grants:
            grants = [*grants, answer.fence]
        assert grants == sorted(set(grants))
        if isinstance(answer, Busy):
            assert answer.fence >= (grants or [self.fences[name]])[-1]
        if grants:
            assert grants[0] > self.fences[name]
            self.fences[name] = grants[-1]

    def finish(self):
        assert self.heard.get_message() is None
        self.heard.close()
        self.ears.close()


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(OPERATIONS, st.booleans()), min_size=5, max_size=40))
def test_every_way_does_the_same(r, operations):
    compare(r, operations)


@pytest.mark.parametrize("name", STORIES)
def test_every_way_does_the_same_in_what_matters_most(r, name):
    for leaves in (True, False):
        compare(r, story(*STORIES[name], leaves=leaves))


def compare(client, operations):
    comparison = Comparison(client)
    for operation, again in operations:
        comparison.step(operation)
        if again:
            comparison.step(operation)
    comparison.finish()


def test_a_lock_that_somebody_took_without_a_lease_is_waited_for(r):
    for name, missing in lock_ways.WAYS.items():
        way = lock_ways.ServerWay(r, LockKeys.of(name), missing())
        r.set(way.keys.lock, b"a stranger")
        answer = way.acquire(AcquireRequest(b"t", LEASE_MS, channel=b"c"))
        assert isinstance(answer, Busy)
        assert answer.remaining_ms == -1
        assert answer.position == 0
        assert r.pttl(way.keys.lock) == -1


@pytest.mark.parametrize("way", lock_ways.WAYS)
def test_the_clock_of_a_server_may_have_been_ahead(r, way):
    """Fences and tickets that an earlier master wrote with a clock that was far ahead."""
    operated = lock_ways.ServerWay(r, LockKeys.of(way), lock_ways.WAYS[way]())
    ahead = now_us(r) + 3_600_000_000
    r.set(operated.keys.fence, ahead, px=LEASE_MS)
    first = AcquireRequest(b"first", LEASE_MS, channel=NO_CHANNEL)
    granted = operated.acquire(AcquireRequest(b"holder", LEASE_MS))
    assert granted == Granted(ahead + 1, waiters=False)
    # It is kept until it is behind the clock, and a minute, or two leases, longer.
    assert r.pttl(operated.keys.fence) == pytest.approx(3_600_000 + 2 * LEASE_MS, abs=TOLERANCE_MS)
    r.zadd(operated.keys.queue, {first.record: ahead})
    late = operated.acquire(AcquireRequest(b"second", LEASE_MS, channel=b"c2"))
    assert isinstance(late, Busy)
    assert late.position == 1
    assert late.fence == ahead + 1
    assert operated.release(ReleaseRequest(b"holder"))
    assert operated.picture() == lock_ways.Picture(b"first", frozenset(), (b"second",))
