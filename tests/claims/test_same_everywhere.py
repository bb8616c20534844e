"""The claim scripts do what the pure rules do, for random histories, in every layout."""

from __future__ import annotations

import struct
from typing import NamedTuple

import claim_rules as rules
import pytest
from claim_rules import LOST_LIFE_MS, ShardClaims
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from servers import wait_until

from bloomlock import claims
from bloomlock.claims import Answer, ClaimRequest, Failure, Held, Offered, Outcome, Record
from bloomlock.descriptor import with_slices
from bloomlock.hashing import Hasher
from bloomlock.keys import ClaimKeys, FilterKeys
from bloomlock.runtime.threads import threads_for
from bloomlock.shard_hashing import Chained
from bloomlock.strategies import Chain
from bloomlock.strategies.cells import bits_of_cells, turn
from bloomlock.windows import Window

LEASE_MS = 600_000
TOLERANCE_MS = 60_000
KEYS = ClaimKeys.of(FilterKeys("same").bits(0))
CHANNELS = (b"bloomlock:wake:0", b"bloomlock:wake:1")
HASHERS = {
    "classic": Hasher(8192, 7),
    "blocked": Hasher(8192, 7, layout="blocked"),
    "seeds": Hasher(8192, 3, seeds=(1, 2, 3)),
    "key": Hasher(8192, 7, key=b"k" * 16),
    "blocked, key": Hasher(8192, 7, layout="blocked", key=b"k" * 16),
    "window": Hasher(1024, 7),
    "growth": Chained([(64, 1000, 2), (1064, 4000, 3), (5064, 8000, 4)]),
}
WINDOWS = {"window": Window(6 * 86_400 * 10**6, 6)}


class Operation(NamedTuple):
    """One call: item number i of it is that of worker `worker + i * next_worker`, modulo 3."""

    what: str
    items: tuple[int, ...]
    worker: int = 0
    max_attempts: int = 0
    option: bool = False
    next_worker: int = 0


OPERATIONS = st.builds(
    Operation,
    st.sampled_from(
        ["claim"] * 8
        + ["wait", "expired", "commit", "commit", "abandon", "fail", "fail", "renew"]
        + ["run out", "run out", "find", "lose deadline", "lose record", "age lost", "clear"]
        + ["add", "old generation", "retry", "retry", "drop", "grow"]
    ),
    st.sampled_from([(0,)] * 3 + [(1,)] * 3 + [(0, 1), (1, 0, 2), (0, 0), (1, 2, 1)]),
    st.integers(0, 2),
    st.sampled_from([0, 0, 2]),
    st.booleans(),
    st.sampled_from([0, 0, 1]),
)


class Comparison:
    """One shard on the server and in the model; after each operation they are held together."""

    def __init__(self, client, hasher, window=None):
        client.flushall()
        self.client, self.hasher, self.window = client, hasher, window
        # What two clients know of the slices of the shard.
        grows = isinstance(hasher, Chained)
        self.chains = [Chain(hasher), Chain(hasher)] if grows else [None, None]
        self.run = threads_for(client).run
        self.generation = 0
        self.pure = ShardClaims(b"")
        self.fences = [0]
        self.heard = client.pubsub()
        self.heard.subscribe(*CHANNELS)
        for _ in CHANNELS:
            wait_until(lambda: self.heard.get_message(timeout=1))
        self.told: list[tuple[bytes, bytes]] = []
        self.clear()

    def clear(self):
        self.generation += 1
        header = b"B\0" + (self.generation << 4).to_bytes(6, "big")
        # With a window a state of 8 bytes, and a cell of one byte for each bit.
        self.client.set(KEYS.bits, header + bytes(2048 if self.window is None else 1032))
        self.pure.header, self.pure.bits = header, set()
        self.num_slices = 1

    def held(self, operation):
        first, step = operation.worker, operation.next_worker
        return [
            self.held_by((first + i * step) % 3, item) for i, item in enumerate(operation.items)
        ]

    def held_by(self, worker, item):
        data = b"item%04d" % item
        _, offsets = self.hasher.locate(data)
        if isinstance(offsets, bytes):
            return Held(self.hasher.identify(data), b"t%d.%d" % (worker, item), b"\0" + data)
        if self.window is not None:
            offsets = bits_of_cells(self.window.cell_bits, offsets)
        places = struct.pack(f">{len(offsets)}I", *offsets)
        return Held(self.hasher.identify(data), b"t%d.%d" % (worker, item), places)

    def now_us(self):
        seconds, microseconds = self.client.time()
        return seconds * 1_000_000 + microseconds

    def publish(self, channel, token):
        self.told.append((channel, token))

    def step(self, operation):
        self.told.clear()
        now_us = self.now_us()
        expected, answers = self.carry_out(operation, now_us)
        assert list(map(without_clock, answers)) == list(map(without_clock, expected))
        for mine, answer in zip(self.held(operation), answers, strict=False):
            if isinstance(answer, Answer) and answer.outcome is Outcome.NEW:
                self.take_fence(mine.id, answer.fence)
        assert [self.message() for _ in self.told] == self.told
        self.compare()

    def take_fence(self, item, fence):
        """Take the server's number of a claim; a new claim's is above all earlier ones."""
        known = self.pure.open[item].fence
        if known in self.fences:
            assert fence == known, "a repeated claim"
        else:
            assert fence > self.fences[-1], "fences rise"
            self.fences.append(fence)
            self.pure.open[item] = self.pure.open[item]._replace(fence=fence)
            self.pure.fence = fence

    def message(self):
        message = self.heard.get_message(timeout=10)
        assert message is not None, "a waiter was not woken"
        return message["channel"], message["data"]

    def carry_out(self, operation, now_us):
        held, state = self.held(operation), self.pure
        old = operation.what == "old generation"
        header = b"B\0earlier"[:8] if old else state.header
        chain = self.chains[operation.worker % 2]
        place = claims.Place(KEYS.bits, header, self.window, chain)
        option = operation.option
        if operation.what in ("claim", "wait", "expired", "old generation"):
            requests = [
                ClaimRequest(
                    *mine,
                    LEASE_MS,
                    operation.max_attempts,
                    b"carried by %d" % operation.worker,
                    CHANNELS[option] if operation.what == "wait" else b"",
                    operation.what == "expired",
                )
                for mine in held
            ]
            expected = [
                rules.claim(state, now_us, header, request, self.publish) for request in requests
            ]
            return expected, self.run(claims.take_claims([(place, requests)]))
        if operation.what == "commit":
            expected = [rules.commit(state, header, mine, self.publish) for mine in held]
            return expected, self.run(claims.commit_claims([(place, held)]))
        if operation.what in ("abandon", "fail"):
            error = None if operation.what == "abandon" else f"why {operation.worker}"
            data = None if error is None else error.encode()
            offered = Offered(option + (operation.max_attempts > 0))
            expected = [
                rules.abandon(
                    state, now_us, header, mine, self.publish, error=data, offered=offered
                )
                for mine in held
            ]
            return expected, self.run(
                claims.abandon_claims([(place, held)], error, offered=offered)
            )
        if operation.what == "renew":
            renewals = [(mine, LEASE_MS * (1 + (i + option) % 2)) for i, mine in enumerate(held)]
            expected = [rules.renew(state, now_us, header, *renewal) for renewal in renewals]
            return expected, self.run(claims.renew_claims([(place, renewals)]))
        if operation.what in ("find", "retry", "drop"):
            return self.administer(operation.what, [mine.id for mine in held], now_us, place)
        if operation.what == "grow" and chain is not None:
            self.num_slices = min(3, self.num_slices + 1)
            grown = with_slices(int.from_bytes(state.header, "big"), self.num_slices)
            self.client.setrange(KEYS.bits, 0, grown.to_bytes(8, "big"))
        for item, mine in zip(operation.items, held, strict=True):
            self.happen(operation.what, item, mine, now_us // 1000)
        return [], []

    def administer(self, what, items, now_us, place):
        if what == "find":
            expected = rules.find_expired(self.pure, now_us, place.header, 10)
            return expected, self.run(claims.find_expired(place, 10))
        if what == "drop":
            expected = [
                rules.drop(self.pure, now_us, place.header, item, self.publish) for item in items
            ]
            return expected, self.run(claims.drop_claims([(place, items)]))
        expected = [rules.retry(self.pure, now_us, place.header, item) for item in items]
        answers = self.run(claims.retry_claims([(place, items)]))
        for item in items:
            self.take_offered(item)
        return expected, answers

    def take_offered(self, item):
        """Take the server's moment and number of an item that was offered; the number rises."""
        stored = self.client.hget(KEYS.open, item)
        if stored is not None and item in self.pure.leases:
            self.pure.leases[item] = int(self.client.zscore(KEYS.claims, item))
            self.take_fence(item, Record.decode(stored).fence)

    def happen(self, what, number, mine, now_ms):
        """Do to both what no client does."""
        state, client = self.pure, self.client
        if what == "run out" and mine.id in state.leases:
            state.leases[mine.id] = now_ms - 1 - number
            client.zadd(KEYS.claims, {mine.id: now_ms - 1 - number})
        elif what == "lose deadline":
            state.leases.pop(mine.id, None)
            client.zrem(KEYS.claims, mine.id)
        elif what == "lose record":
            state.open.pop(mine.id, None)
            client.hdel(KEYS.open, mine.id)
        elif what == "age lost" and mine.token in state.lost:
            state.lost[mine.token] = now_ms - LOST_LIFE_MS - TOLERANCE_MS
            client.zadd(KEYS.lost, {mine.token: now_ms - LOST_LIFE_MS - TOLERANCE_MS})
        elif what == "add":
            state.bits |= rules._bits_of(mine.places)
            last, places = 0, mine.places
            if self.chains[0] is not None:
                offsets = self.hasher.offsets(places[1:], self.num_slices)
                newest = offsets[-self.hasher.hashes[self.num_slices - 1] :]
                places = struct.pack(f">{len(newest)}I", *newest)
            if self.window is not None:
                header = int.from_bytes(state.header, "big")
                epoch = self.run(turn(self.window, KEYS.bits, header)).epoch
                last = 7 - epoch % 8
            for (offset,) in struct.iter_unpack(">I", places):
                client.setbit(KEYS.bits, offset + last, 1)
        elif what == "clear":
            self.clear()

    def compare(self):
        state, client = self.pure, self.client
        if self.chains[0] is None:
            assert set(map(struct.Struct(">I").pack, self.bits())) == state.bits
        else:
            for mine in (self.held_by(0, item) for item in range(3)):
                assert self.is_in_a_slice(mine.places[1:]) == (
                    rules._bits_of(mine.places) <= state.bits
                )
        records = {k: Record.decode(v) for k, v in client.hgetall(KEYS.open).items()}
        assert records == state.open
        failed = {k: Failure.decode(v) for k, v in client.hgetall(KEYS.failed).items()}
        assert failed == state.failed
        for key, times in ((KEYS.claims, state.leases), (KEYS.lost, state.lost)):
            stored = dict(client.zrange(key, 0, -1, withscores=True))
            assert stored == pytest.approx(times, abs=TOLERANCE_MS)
        waiting = {
            item: b"".join(b"%b %b;" % one for one in waiters)
            for item, waiters in state.waiting.items()
        }
        assert client.hgetall(KEYS.waiting) == waiting
        counts = client.hgetall(KEYS.counts)
        assert counts.pop(b"header", b"") == state.of_header
        assert int(counts.pop(b"fence", 0)) == state.fence
        assert {name.decode(): int(n) for name, n in counts.items()} == state.counts
        self.check_sums()

    def bits(self):
        """Return which bits are set behind the header; with a window the cells with one of them."""
        found = self.client.get(KEYS.bits)
        if self.window is not None:
            return [8 * index for index, byte in enumerate(found) if index >= 16 and byte]
        return [
            8 * index + bit
            for index, byte in enumerate(found)
            for bit in range(8)
            if index >= 8 and byte >> (7 - bit) & 1
        ]

    def is_in_a_slice(self, data):
        """Return whether a slice that the shard has has all bits of an item."""
        found, start = set(self.bits()), 0
        offsets = self.hasher.offsets(data, self.num_slices)
        for count in self.hasher.hashes[: self.num_slices]:
            if found.issuperset(offsets[start : start + count]):
                return True
            start += count
        return False

    def check_sums(self):
        """Each claim that was granted is open, or was counted as what became of it."""
        counts, state = self.pure.counts, self.pure
        if state.of_header != state.header or self.has_lost_a_record:
            return
        ended = sum(counts.get(name, 0) for name in claims.COUNTERS[1:])
        is_open = sum(record.token != b"" for record in state.open.values())
        assert counts.get("claimed", 0) == ended + is_open

    has_lost_a_record = False


def without_clock(answer):
    if isinstance(answer, Answer):
        remaining_ms = round(answer.remaining_ms / TOLERANCE_MS)
        return answer._replace(fence=0, remaining_ms=remaining_ms, at_us=0)
    return answer


@pytest.mark.parametrize("kind", HASHERS)
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
@given(operations=st.lists(OPERATIONS, min_size=4, max_size=40))
def test_random_histories(r, kind, operations):
    carry_out(r, kind, operations)


GRANTED_AGAIN = [
    Operation("claim", (0,)),
    Operation("run out", (0,)),
    Operation("claim", (0,), worker=1),
    Operation("abandon", (0,), worker=1),
    Operation("claim", (0,)),
    Operation("commit", (0,)),
]
"""A claim that was lost to another worker is granted after all, and is not lost any more."""
TWICE_IN_A_CALL = [
    Operation("claim", (0,)),
    Operation("run out", (0,)),
    Operation("claim", (0, 0, 0), worker=1, next_worker=1),
    Operation("renew", (0, 0), worker=1, option=True),
]
"""An item that is over is given to one in a call; the longest of several leases stays."""


TWICE_WITHOUT_A_RECORD = [
    Operation("claim", (0,)),
    Operation("run out", (0,)),
    Operation("lose record", (0,)),
    Operation("claim", (0, 0), next_worker=1),
]
"""Of a call that grants an item anew, the second finds the first's lease, not the one before."""
LATE_AFTER_A_RETRY = [
    Operation("claim", (0,)),
    Operation("run out", (0,)),
    Operation("retry", (0,)),
    Operation("abandon", (0,), option=True),
    Operation("claim", (0,), worker=1, max_attempts=2),
]
"""A late worker gives back an item that was retried: it has no attempts, and not one fewer."""


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
@example(operations=GRANTED_AGAIN)
@example(operations=TWICE_IN_A_CALL)
@example(operations=LATE_AFTER_A_RETRY)
@example(operations=TWICE_WITHOUT_A_RECORD)
@given(operations=st.lists(OPERATIONS, min_size=4, max_size=40))
def test_every_kind_of_server(client, operations):
    carry_out(client, "classic", operations)


def carry_out(client, kind, operations):
    made = Comparison(client, HASHERS[kind], WINDOWS.get(kind))
    try:
        for operation in operations:
            made.has_lost_a_record |= operation.what == "lose record"
            # Everything twice: a step that is repeated gives the same answer.
            made.step(operation)
            if operation.what not in ("clear", "run out", "find"):
                made.step(operation)
    finally:
        made.heard.close()
