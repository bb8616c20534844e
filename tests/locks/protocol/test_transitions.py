"""The pure transitions under random steps, at times that are passed in.

The clients' time only goes forward. The server's clock may also be set back, which lets leases
live longer than they should and never shorter.
"""

from __future__ import annotations

from copy import deepcopy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bloomlock.locks.protocol import model
from bloomlock.locks.protocol.model import (
    FENCE_LIFE_MS,
    LIVENESS_MS,
    SLICE_MS,
    AcquireRequest,
    Granted,
    LockState,
    ReleaseRequest,
    read_record,
)

LEASE_MS = 3_000
START_MS = 1_700_000_000_000
KINDS = ((b"", False), (b"", False), (b"r", False), (b"r", False), (b"o", True), (b"o", True))
CLIENTS = st.integers(0, len(KINDS) - 1)


class Known:
    """One client: when it last asked and had to wait, and until when it relies on the lock."""

    def __init__(self, number):
        self.number = number
        self.group, self.may_join = KINDS[number]
        self.round = 0
        self.start_over()

    def start_over(self):
        self.round += 1
        self.asked = None
        self.until = None
        token = b"%d.%d" % (self.number, self.round)
        self.asking = AcquireRequest(
            token, LEASE_MS, self.group, self.may_join, b"c%d" % self.number
        )

    def leaving(self):
        return ReleaseRequest(self.asking.token, self.group, self.asking.record)


class Transitions(RuleBasedStateMachine):
    """One lock and those who want it."""

    def __init__(self):
        super().__init__()
        self.state = LockState()
        self.clients = [Known(number) for number in range(len(KINDS))]
        self.now_ms = 0
        self.back_ms = 0
        self.fence = 0
        self.order = []

    @property
    def now_us(self):
        return (START_MS + self.now_ms - self.back_ms) * 1000

    def seen(self):
        """The state without leases, fence, and what is dead but not dropped yet."""
        state, now_us = deepcopy(self.state), self.now_us
        model._forget(state, now_us)
        queue = [(r, t) for r, t in state.queue.items() if model._is_alive(state, now_us, r)]
        return state.value, set(state.holders), queue

    def is_alive(self, client):
        return client.asked is not None and self.now_ms < client.asked + LIVENESS_MS

    def waiting(self):
        """The records of live waiters, in the order in which they asked."""
        alive = {client.asking.record for client in self.clients if self.is_alive(client)}
        return [record for record in self.order if record in alive]

    def dead(self):
        """The tokens of those in the queue who were not heard of for too long."""
        state, now_us = self.state, self.now_us
        return {
            read_record(record).token
            for record in state.queue
            if not model._is_alive(state, now_us, record)
        }

    def holder_group(self):
        state = deepcopy(self.state)
        model._forget(state, self.now_us)
        return state.value

    def acquire(self, client, asking):
        """Carry out one acquire; check what does not depend on who asks."""
        told, before, dead = [], self.waiting(), self.dead() - {asking.token}
        if asking.channel and asking.record not in self.state.queue:
            self.order = [r for r in self.order if r != asking.record] + [asking.record]
            before = [r for r in before if r != asking.record] + [asking.record]
        if asking.channel:
            client.asked = self.now_ms
        answer = model.acquire(self.state, self.now_us, asking, told.append)
        assert not dead & {announcement.token for announcement in told}
        direct = isinstance(answer, Granted) and asking.token not in [a.token for a in told]
        self.note(told, before)
        if direct:
            self.rise(answer.fence)
        if not isinstance(answer, Granted):
            assert answer.fence >= self.fence
        else:
            self.grant(client, self.now_ms + LEASE_MS)
        return answer, direct

    def note(self, told, before):
        """Check those who were handed the lock, against the waiters before."""
        handed = [a.token for a in told]
        waiters = [read_record(record) for record in before]
        for announcement in told:
            self.rise(announcement.grant.fence)
        if not handed:
            return
        first = next((w for w in waiters if w.token == handed[0]), None)
        if first is not None:  # not one of the dead, whom a clock that was set back keeps alive
            assert first == waiters[0]
            # All readers go together, and a writer alone.
            wanted = [
                w.token for w in waiters if w == first or (w.group and w.group == first.group)
            ]
            assert [token for token in handed if token in {w.token for w in waiters}] == wanted
        for client in self.clients:
            if client.asking.token in handed and client.asked is not None:
                self.grant(client, min(client.asked + LEASE_MS + SLICE_MS, self.now_ms + LEASE_MS))

    def rise(self, fence):
        # It goes on from the clock where the last fence was forgotten.
        assert fence > self.fence
        assert fence >= self.now_us
        self.fence = fence

    def grant(self, client, until):
        client.asked, client.until = None, until

    @rule(number=CLIENTS, waits=st.booleans(), again=st.booleans())
    def ask(self, number, waits, again):
        client = self.clients[number]
        asking = client.asking if waits else client.asking._replace(channel=b"")
        group_held = client.group and self.holder_group() == b"=" + client.group
        relied = client.until is not None and self.now_ms < client.until
        held = client.asking.token in (self.seen()[0], *self.seen()[1])
        answer, direct = self.acquire(client, asking)
        if direct and not held:
            joined = client.may_join and len(self.seen()[1]) > 1
            assert joined or not self.waiting()
        if relied or (group_held and client.may_join):
            assert isinstance(answer, Granted)
        if again:
            before = self.seen()
            repeated, _ = self.acquire(client, asking)
            assert type(repeated) is type(answer)
            if isinstance(answer, Granted):
                # Of readers who are let in together the first still sees the others waiting.
                assert repeated.waiters <= answer.waiters
                assert repeated.fence >= answer.fence
            else:
                # The dead before it may be dropped only the second time. The first time a newcomer
                # is told no more than whether anybody waits before it.
                assert min(repeated.position, 1) <= answer.position
                assert repeated._replace(position=answer.position) == answer
            assert self.seen() == before

    @rule(number=CLIENTS)
    def release(self, number):
        self.release_of(self.clients[number])

    def release_of(self, client):
        relied = client.until is not None and self.now_ms < client.until
        told, before = [], [r for r in self.waiting() if r != client.asking.record]
        dead = self.dead()
        held = model.release(self.state, self.now_us, client.leaving(), told.append)
        assert not dead & {announcement.token for announcement in told}
        assert not before or self.seen()[0] is not None
        assert held or not relied
        self.note(told, before)
        seen = self.seen()
        repeated = model.release(self.state, self.now_us, client.leaving(), told.append)
        assert not repeated
        assert self.seen() == seen
        token = client.asking.token
        assert token not in (seen[0], *seen[1])
        assert client.asking.record not in dict(seen[2])
        client.start_over()

    @rule(number=CLIENTS, again=st.booleans())
    def renew(self, number, again):
        client = self.clients[number]
        relied = client.until is not None and self.now_ms < client.until
        for _ in range(1 + again):
            before = self.seen()
            held = model.renew(self.state, self.now_us, client.asking.token, client.group, LEASE_MS)
            assert self.seen() == before
            assert held == (client.asking.token in (before[0], *before[1]))
        assert held or not relied
        if relied:
            client.until = self.now_ms + LEASE_MS

    @rule(number=CLIENTS, renews=st.booleans())
    def come_with_a_token_of_nobody(self, number, renews):
        before, told = self.seen(), []
        group = KINDS[number][0]
        if renews:
            assert not model.renew(self.state, self.now_us, b"?", group, LEASE_MS)
            assert self.seen() == before
        else:
            waiting = self.waiting()
            leaving = ReleaseRequest(b"?", group)
            assert not model.release(self.state, self.now_us, leaving, told.append)
            self.note(told, waiting)
            # A free lock is handed on by anybody; and so is one that waiters' group shares.
            assert self.seen() == before or before[0] is None or before[0].startswith(b"=")
            assert before[1] <= self.seen()[1]

    @rule(
        milliseconds=st.sampled_from(
            [1, 500, SLICE_MS, LEASE_MS, LIVENESS_MS - 1, 20_000, FENCE_LIFE_MS + 1, 3_000_000]
        )
    )
    def time_passes(self, milliseconds):
        self.now_ms += milliseconds

    # If it is set back once the last fence is forgotten, fences may fall: nothing else is known.
    @precondition(lambda self: not self.fence or self.state.fence_expires_ms > self.now_us // 1000)
    @rule(milliseconds=st.sampled_from([1, 1_000, 3_600_000]))
    def the_server_clock_is_set_back(self, milliseconds):
        self.back_ms += milliseconds

    @precondition(lambda self: self.state.value is not None)
    @rule()
    def the_key_is_deleted(self):
        self.state.value = None
        for client in self.clients:
            client.until = None

    @invariant()
    def who_relies_on_the_lock_has_it_alone(self):
        relying = [c for c in self.clients if c.until is not None and self.now_ms < c.until]
        value, holders, _ = self.seen()
        for client in relying:
            assert value == (b"=" + client.group if client.group else client.asking.token)
            assert not client.group or client.asking.token in holders
        assert len({client.group or client.asking.token for client in relying}) < 2

    @invariant()
    def no_live_waiter_is_forgotten(self):
        for client in self.clients:
            assert not self.is_alive(client) or client.asking.record in self.state.queue

    def teardown(self):
        """Whoever waits and comes back each slice gets the lock, if those who hold it let go."""
        for client in self.clients:
            if not self.is_alive(client):
                client.asked = None
        for _ in range(4 * len(KINDS)):
            for client in self.clients:
                if client.asked is not None:
                    self.acquire(client, client.asking)
            for client in self.clients:
                if client.until is not None:
                    self.release_of(client)
            self.now_ms += SLICE_MS
        assert [client.number for client in self.clients if client.asked is not None] == []


TestTransitions = Transitions.TestCase
TestTransitions.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
