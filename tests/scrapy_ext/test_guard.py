"""The filter always answers: with the server's word, or by what it knows and BLOOMLOCK_ON_OUTAGE.

The clock by which a server that failed is tried again stands still until a test moves it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from asked_filter import NAME, WAYS, AskedFilter, Clock, request
from moved_clock import moved_server
from proxy import Proxy, deliver
from scrapy.utils.request import fingerprint
from servers import wait_until

from bloomlock import BloomFilter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

Make = "Callable[..., AskedFilter]"
# Without room for a mirror the last requests are known as they are.
MEMORIES = [pytest.param({}, id="mirror"), pytest.param({"BLOOMLOCK_MIRROR_BYTES": 0}, id="last")]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def proxy(valkey: str, r: redis.Redis) -> Iterator[Proxy]:
    """Between the filter and its empty server."""
    del r
    with Proxy(valkey) as made:
        yield made


@pytest.fixture(params=WAYS)
def make(request: pytest.FixtureRequest, proxy: Proxy, clock: Clock) -> Iterator[Any]:
    """Make filters of processes."""
    del clock
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            AskedFilter(proxy.url, request.param, **settings)
        )
        proxy.judge = deliver


def away(proxy: Proxy, asked: AskedFilter) -> None:
    """Let the server be away, and the filter find out."""
    before = asked.stat("outages")
    proxy.judge = lambda *_: "before"
    asked.ask(f"first {before}")
    assert asked.stat("outages") == before + 1


def back(proxy: Proxy, clock: Clock) -> None:
    proxy.judge = deliver
    clock.now += 60


def recorded(r: redis.Redis, *paths: str, **options: Any) -> str:
    """Return a letter for each path: s, the filter on the server has it, or n."""
    with BloomFilter.open(NAME, client=r, **options) as shared:
        found = shared.exists_many([fingerprint(request(path)) for path in paths])
    return "".join("s" if one else "n" for one in found)


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_outage_hides_nothing_that_this_process_knows(
    memory: dict[str, Any], make: Any, proxy: Proxy, clock: Clock, r: redis.Redis
) -> None:
    other, asked = make(), make(**memory)
    other.ask("of another")
    assert asked.ask("of another", "own") == "sn"
    away(proxy, asked)
    assert asked.ask("own", "of another", "new", "new", "newer") == "ssnsn"
    # All of it is one outage, in which the server was asked once.
    assert (asked.stat("errors"), asked.stat("outages"), asked.stat("allowed")) == (1, 1, 2)
    back(proxy, clock)
    # Any answer makes it give the filter what it let through.
    assert asked.ask("after") == "n"
    assert recorded(r, "own", "of another", "new", "newer", "after") == "sssss"
    assert asked.stat("refills") == 1
    assert asked.ask("new") == "s"


def test_drop_keeps_out_what_is_not_known_but_not_what_must_pass(
    make: Any, proxy: Proxy, clock: Clock, r: redis.Redis
) -> None:
    asked = make(BLOOMLOCK_ON_OUTAGE="drop")
    assert asked.ask("a") == "n"
    away(proxy, asked)
    assert asked.ask("a", "b", "b") == "sss"
    assert asked.ask("forced", bloomlock_filter=False) == "n"
    assert asked.ask("b", bloomlock_record=False) == "s"
    assert asked.stat("dropped") == 3
    back(proxy, clock)
    # What was dropped was not recorded.
    assert asked.ask("b", "forced") == "ns"
    assert recorded(r, "a", "b", "forced") == "sss"


def test_a_server_that_failed_is_left_alone_for_a_while(
    make: Any, proxy: Proxy, clock: Clock
) -> None:
    asked = make()
    away(proxy, asked)
    sent = len(proxy.seen)
    for number in range(50):
        assert asked.ask(f"{number}") == "n"
    assert (len(proxy.seen), asked.stat("errors")) == (sent, 1)
    clock.now += 60
    assert asked.ask("50") == "n"
    assert (len(proxy.seen) > sent, asked.stat("errors")) == (True, 2)


def clear(r: redis.Redis, saved: dict[bytes, bytes]) -> None:
    del saved
    with BloomFilter.open(NAME, client=r) as shared:
        shared.clear()


def flush(r: redis.Redis, saved: dict[bytes, bytes]) -> None:
    del saved
    r.flushall()


def evict(r: redis.Redis, saved: dict[bytes, bytes]) -> None:
    del saved
    r.delete(f"bloomlock:{{{NAME}}}:bits")


def set_back(r: redis.Redis, saved: dict[bytes, bytes]) -> None:
    """Give the server what it had at an earlier moment."""
    for key, value in saved.items():
        r.restore(key, 0, value, replace=True)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("loss", [flush, evict, set_back, clear])
def test_what_is_lost_is_given_back_and_what_is_cleared_is_not(
    loss: Any, memory: dict[str, Any], make: Any, r: redis.Redis
) -> None:
    one, two = make(**memory), make(**memory)
    one.ask("early")
    saved = {key: r.dump(key) for key in r.scan_iter()}
    assert (one.ask("late", "later"), two.ask("of two")) == ("nn", "n")
    loss(r, saved)
    is_cleared = loss is clear
    assert one.ask("late") == ("n" if is_cleared else "s")
    assert recorded(r, "late", "later") == ("sn" if is_cleared else "ss")
    assert two.ask("of two") == ("n" if is_cleared else "s")
    assert recorded(r, "of two") == "s"
    assert one.stat("refills") == two.stat("refills") == (0 if is_cleared else 1)
    assert one.stat("errors") == 0


def test_a_refill_that_fails_keeps_nobody_from_asking_and_is_tried_again(
    make: Any, clock: Clock, r: redis.Redis
) -> None:
    asked = make()
    saved = {key: r.dump(key) for key in r.scan_iter()}
    assert asked.ask("a", "c") == "nn"
    set_back(r, saved)
    try:
        r.execute_command("ACL", "SETUSER", "default", "-bitop", "-eval", "-evalsha")
        assert asked.ask("a") == "s"
        assert asked.ask("b") == "n"
        assert asked.stat("outages") == asked.stat("refills") == 0
        assert asked.stat("errors") > 0
    finally:
        r.execute_command("ACL", "SETUSER", "default", "+@all")
    clock.now += 60
    assert asked.ask("a") == "s"
    assert asked.stat("refills") == 1
    assert recorded(r, "a", "b", "c") == "sss"


@pytest.mark.parametrize(("policy", "first"), [("allow", "n"), ("drop", "s")])
def test_another_type_under_the_key_and_a_full_filter_are_left_to_the_policy(
    policy: str, first: str, make: Any, r: redis.Redis
) -> None:
    asked = make(BLOOMLOCK_ON_OUTAGE=policy)
    for key in r.scan_iter():
        r.delete(key)
        r.lpush(key, "something else")
    assert asked.ask("a") + asked.ask("a") == first + "s"
    assert (asked.stat("errors"), asked.stat("outages")) == (1, 1)
    r.flushall()
    options = {"BLOOMLOCK_CAPACITY": 100, "BLOOMLOCK_ON_FULL": "raise"}
    filler = make(**options)
    filler.ask(*map(str, range(110)))
    full = make(**options, BLOOMLOCK_ON_OUTAGE=policy)
    assert full.ask("new", "1", "new", "2") == f"{first}sss"
    assert full.stat("full") > 0
    assert full.stat("errors") == full.stat("outages") == 0


# Several pages whose round trips are under way at once.


def two_pages(
    asked: AskedFilter, proxy: Proxy, pages: list[list[str]], order: tuple[int, int], lost: int = -1
) -> list[str]:
    """Ask for two pages at once; their answers come in an order, that of one page is lost."""
    sent = [threading.Event(), threading.Event()]
    gates = [threading.Event(), threading.Event()]
    numbers = iter([0, 1])

    def judge(name: str, _: int) -> Any:
        if name != "BITFIELD":
            return "pass"
        number = next(numbers, None)
        if number is None:
            return "pass"
        sent[number].set()
        # An answer that is lost is one that the server gave.
        gates[number].wait(300)
        return "after" if number == lost else "pass"

    async def both() -> list[str]:
        tasks = []
        for number, page in enumerate(pages):
            made = asked.ask_page([request(path) for path in page])
            tasks.append(asyncio.ensure_future(made))
            await asyncio.to_thread(sent[number].wait, 300)
        for number in order:
            gates[number].set()
            await tasks[number]
        return [task.result() for task in tasks]

    proxy.judge = judge
    return asked._loop.run(both())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("lost", [-1, 0, 1])
def test_of_two_pages_at_once_one_lets_a_request_through(
    lost: int, order: tuple[int, int], proxy: Proxy, clock: Clock
) -> None:
    """Also if what one has found seen is what the other, whose answer is lost, has recorded."""
    del clock
    with AskedFilter(proxy.url, "batches") as asked:
        found = two_pages(asked, proxy, [["a", "0", "z"], ["a", "1", "y"]], order, lost)
        proxy.judge = deliver
        assert sorted(one[0] for one in found) == ["n", "s"]
        assert [one[1:] for one in found] == ["nn", "nn"]
        # What the other page made known is no loss of the filter.
        assert lost >= 0 or asked.stat("refills") == 0
        assert (asked.stat("unknown") > 0) is (lost >= 0)


def test_what_may_be_recorded_is_let_through_once(make: Any, proxy: Proxy, clock: Clock) -> None:
    asked = make(BLOOMLOCK_ON_OUTAGE="drop")
    asked.ask("old")
    proxy.judge = lambda name, _: "after" if name == "BITFIELD" else "pass"
    assert asked.ask("a", "a", "old") == "nss"
    assert asked.stat("unknown") > 0
    back(proxy, clock)
    assert asked.ask("a", "b") == "sn"


def test_a_clear_during_a_round_trip_makes_its_requests_new(proxy: Proxy, clock: Clock) -> None:
    del clock
    with AskedFilter(proxy.url, "batches") as asked:
        assert asked.ask("a", "z") == "nn"
        asked.filter.wipe()
        # The second page is asked when the first is under way, and its answer comes first.
        assert two_pages(asked, proxy, [["a", "b"], ["c", "d"]], (1, 0)) == ["nn", "nn"]
        proxy.judge = deliver
        assert asked.stat("refills") == 0


def test_what_a_window_has_forgotten_is_not_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    hour, begin = 3600, time.monotonic()
    with moved_server("valkey", tmp_path) as (client, move, url), Proxy(url) as proxy:

        def move_all(hours: int) -> None:
            monkeypatch.setattr("scrapy_ext.answers._boot_time", lambda: begin + hours * hour)
            move(hours * hour)

        move_all(0)
        window = {"BLOOMLOCK_WINDOW": 24 * hour}
        with AskedFilter(proxy.url, "batches", **window) as asked:
            with AskedFilter(url, "batches", **window) as other:
                assert other.ask("of another") == "n"
            assert asked.ask("old", "over") == "nn"
            move_all(20)
            assert asked.ask("young", "left", "of another") == "nns"
            # The window is over for what was added first, a slice of less than two hours included.
            move_all(30)
            away(proxy, asked)
            assert asked.ask("young", "old", "old") == "sns"
            back(proxy, clock)
            wait_until(lambda: asked.ask("young") == "s" and asked.stat("refills") == 1)
            paths = ("young", "left", "old", "over", "of another")
            assert recorded(client, *paths) == "sssnn"
            # A server that lost all of it gets what is left of the window.
            move_all(40)
            away(proxy, asked)
            client.flushall()
            back(proxy, clock)
            wait_until(lambda: asked.ask("young") == "s" and asked.stat("refills") == 2)
            assert recorded(client, *paths) == "sssnn"


# By chance: checks, outages, and what other clients add, forget, clear and lose.

PATHS = [f"{number}" for number in range(12)]
STEPS = 150


class Walk:
    """Steps of a filter and of another client, and what both have to find."""

    def __init__(
        self, asked: AskedFilter, proxy: Proxy, clock: Clock, r: redis.Redis, seed: int
    ) -> None:
        self.asked, self.proxy, self.clock, self.r = asked, proxy, clock, r
        self.chance = random.Random(seed)
        self.other = BloomFilter.open(NAME, client=r)
        # What the filter has, what the process knows, and what the filter was not given yet.
        self.there: set[str] = set()
        self.known: set[str] = set()
        self.lacking: set[str] = set()
        self.forgets = self.is_out = self.is_due = False

    def expected(self, path: str, *, recorded: bool) -> str:
        if self.is_out:
            if path in self.known:
                return "s"
            if recorded:
                self.known.add(path)
                self.lacking.add(path)
            return "n"
        is_new = path not in self.there
        owed = path in (self.lacking if self.forgets else self.known)
        if recorded:
            self.there.add(path)
        if recorded or not is_new:
            self.known.add(path)
        self.is_due |= is_new and owed
        return "n" if is_new and not owed else "s"

    def check(self) -> None:
        recorded = self.chance.random() < 0.8
        paths = self.chance.sample(PATHS, self.chance.choice([1, 4]))
        expected = "".join([self.expected(path, recorded=recorded) for path in paths])
        assert self.asked.ask(*paths, bloomlock_record=recorded) == expected
        if self.is_due and not self.is_out:
            # At the end of a check that found a loss the filter gets what it is owed.
            self.there |= self.lacking if self.forgets else self.known
            self.is_due = False
            self.lacking.clear()

    def add(self) -> None:
        path = self.chance.choice(PATHS)
        assert self.other.add(fingerprint(request(path))) is (path not in self.there)
        self.there.add(path)

    def discard(self) -> None:
        path = self.chance.choice(PATHS)
        assert self.other.discard(fingerprint(request(path))) is (path in self.there)
        self.forgets |= path in self.there
        self.there.discard(path)

    def outage(self) -> None:
        if self.is_out:
            back(self.proxy, self.clock)
            self.is_out = False
            return
        self.proxy.judge = lambda *_: "before"
        # What is sent first may count as new, or be decided by the policy.
        self.asked.ask(f"first {self.clock.now}")
        self.is_out = self.is_due = True

    def run(self) -> None:
        acts = [self.check] * 6 + [self.add, self.discard, self.outage]
        for number in range(STEPS):
            self.chance.choice(acts)()
            found = self.other.exists_many([fingerprint(request(path)) for path in PATHS])
            assert found == [path in self.there for path in PATHS], number
        self.other.close()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("part", [0, 1])
def test_each_answer_is_the_expected_one(
    part: int,
    memory: dict[str, Any],
    make: Any,
    proxy: Proxy,
    clock: Clock,
    r: redis.Redis,
    seed: int,
) -> None:
    del part
    asked = make(**memory)
    Walk(asked, proxy, clock, r, seed).run()
    assert asked.stat("refills") > 0
