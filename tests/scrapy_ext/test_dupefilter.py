"""DUPEFILTER_CLASS alone: the filter always answers, by its server or by what the process knows."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from asked_filter import NAME, WAYS, AskedFilter, request
from crawling import PATIENCE
from proxy import Proxy, deliver
from scrapy.utils.request import fingerprint

from bloomlock import BloomFilter
from bloomlock.errors import OutcomeUnknownError
from scrapy_ext import dupefilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis


@pytest.fixture(autouse=True)
def _asks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the near-cache hide nothing, and an outage end soon."""
    monkeypatch.setattr(dupefilter, "PROBE_S", 0.01)
    monkeypatch.setattr(dupefilter, "NEAR_CACHE", 0)


@pytest.fixture
def proxy(valkey: str, r: redis.Redis) -> Iterator[Proxy]:
    """Between the filter and its empty server."""
    del r
    with Proxy(valkey) as made:
        yield made


@pytest.fixture(params=WAYS)
def make(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Callable[..., AskedFilter]]:
    """Make filters of processes."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            AskedFilter(proxy.url, request.param, **settings)
        )
        proxy.judge = deliver


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it becomes true by a timer
            await asyncio.sleep(0.001)


def away(proxy: Proxy, asked: AskedFilter) -> None:
    """Let the server be away, and the filter find out."""
    proxy.judge = lambda *_: "before"
    asked.ask(f"first {asked.stat('outages')}")


def back(proxy: Proxy, asked: AskedFilter) -> None:
    """Let the server answer, and the filter find out by itself."""
    before = asked.stat("refills")
    proxy.judge = deliver
    refilled(asked, before + 1)


def refilled(asked: AskedFilter, times: int) -> None:
    asked.run(_until(lambda: asked.stat("refills") >= times))


def recorded(r: redis.Redis, *paths: str) -> str:
    """Return a letter for each path: s, the filter on the server has it, or n."""
    with BloomFilter.open(NAME, client=r) as shared:
        found = shared.exists_many([fingerprint(request(path)) for path in paths])
    return "".join("s" if one else "n" for one in found)


def test_processes_share_what_they_have_seen(make: Any) -> None:
    one, two = make(), make()
    assert one.ask("a", "b", "a") == "nns"
    assert two.ask("b", "c", "b", "a") == "snss"
    assert one.ask("c", "c") == "ss"
    # Fetched all the same, and recorded.
    assert two.ask("a", "d", bloomlock_filter=False) == "nn"
    assert one.ask("d") == "s"


def test_an_outage_hides_nothing_that_this_process_has_let_through(
    make: Any, proxy: Proxy, r: redis.Redis
) -> None:
    asked = make()
    assert asked.ask("own") == "n"
    away(proxy, asked)
    assert asked.ask("own", "new", "new", "newer") == "snsn"
    assert (asked.stat("outages"), asked.stat("allowed")) == (1, 3)
    sent = len(proxy.seen)
    assert asked.ask(*map(str, range(50))) == "n" * 50
    # Only the probes are sent; another thread may be making one.
    assert len(proxy.seen) - sent < 25
    back(proxy, asked)
    assert recorded(r, "own", "new", "newer", "49") == "ssss"
    assert asked.ask("new", "after") == "sn"


def set_back(r: redis.Redis, saved: dict[bytes, bytes]) -> None:
    """Give the server what it had at an earlier moment, as after a restart."""
    for key, value in saved.items():
        r.restore(key, 0, value, replace=True)


LOSSES: dict[str, Callable[[Any, dict[bytes, bytes]], object]] = {
    "flush": lambda r, _: r.flushall(),
    "evict": lambda r, _: r.delete(f"bloomlock:{{{NAME}}}:bits"),
    "set back": set_back,
    "clear": lambda r, _: BloomFilter.open(NAME, client=r).clear(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_lost_is_given_back_and_what_is_cleared_is_not(
    loss: str, make: Any, proxy: Proxy, r: redis.Redis
) -> None:
    one, two = make(), make()
    one.ask("early")
    saved = {key: r.dump(key) for key in r.scan_iter()}
    assert (one.ask("late", "later"), two.ask("of two")) == ("nn", "n")
    if loss == "set back":
        away(proxy, one)
        two.ask("two finds out")
    LOSSES[loss](r, saved)
    is_cleared = loss == "clear"
    if loss == "set back":
        back(proxy, one)
        refilled(two, 1)
    assert one.ask("late") == ("n" if is_cleared else "s")
    if not is_cleared:
        refilled(one, 1)
    else:
        away(proxy, one)
        back(proxy, one)
    assert recorded(r, "late", "later") == ("sn" if is_cleared else "ss")
    assert two.ask("of two") == ("n" if is_cleared else "s")
    if not is_cleared:
        refilled(two, 1)
    assert recorded(r, "of two") == "s"


def test_a_refill_that_fails_is_tried_again(make: Any, proxy: Proxy, r: redis.Redis) -> None:
    asked = make()
    assert asked.ask("a", "c") == "nn"
    saved = {key: r.dump(key) for key in r.scan_iter()}
    assert asked.ask("b") == "n"
    away(proxy, asked)
    set_back(r, saved)
    errors = asked.stat("errors")
    try:
        r.execute_command("ACL", "SETUSER", "default", "-bitop", "-eval", "-evalsha", "-bitfield")
        proxy.judge = deliver
        asked.run(_until(lambda: asked.stat("errors") > errors + 2))
        assert asked.stat("refills") == 0
        assert asked.ask("a", "b", "d") == "ssn"
    finally:
        r.execute_command("ACL", "SETUSER", "default", "+@all")
    refilled(asked, 1)
    assert recorded(r, "a", "b", "c", "d") == "ssss"


def test_what_a_lost_reply_has_recorded_is_let_through(
    valkey: str, r: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server carries out a page's add, another page finds it, then the reply is lost."""
    del r
    added, found = threading.Event(), threading.Event()

    async def both(asked: AskedFilter) -> tuple[str, str]:
        ask = asked.filter._ask

        def lose(keys: list[bytes]) -> Exception:
            monkeypatch.undo()
            ask(keys)
            added.set()
            found.wait(PATIENCE)
            return OutcomeUnknownError("lost")

        monkeypatch.setattr(asked.filter, "_ask", lose)
        first = asyncio.ensure_future(asked.ask_page([request("a"), request("a").copy()]))
        await asyncio.to_thread(added.wait, PATIENCE)
        second = await asked.ask_page([request("a")])
        found.set()
        return await first, second

    with AskedFilter(valkey, "batches") as asked:
        assert asked.run(both(asked)) == ("ns", "s")


def test_a_discard_makes_a_request_new_also_after_an_outage(
    make: Any, proxy: Proxy, r: redis.Redis
) -> None:
    asked = make()
    assert asked.ask("a", "b") == "nn"
    with BloomFilter.open(NAME, client=r) as shared:
        assert shared.discard(fingerprint(request("a")))
    assert asked.ask("a") == "n"
    with BloomFilter.open(NAME, client=r) as shared:
        assert shared.discard(fingerprint(request("b")))
    away(proxy, asked)
    assert asked.ask("c") == "n"
    back(proxy, asked)
    # What was let through is not given back either.
    assert recorded(r, "a", "b", "c") == "snn"


def test_by_chance(make: Any, proxy: Proxy, r: redis.Redis, seed: int) -> None:
    """Checks, what others add, outages and losses: nothing new is dropped, nothing known passes."""
    chance = random.Random(seed)
    asked = make()
    other = BloomFilter.open(NAME, client=r)
    there: set[str] = set()
    known: set[str] = set()
    for _ in range(60):
        paths = chance.sample([str(number) for number in range(40)], chance.choice([1, 4]))
        match chance.choice(["ask", "ask", "ask", "add", "outage", "loss"]):
            case "add":
                other.add(fingerprint(request(paths[0])))
                there.add(paths[0])
            case "outage":
                proxy.judge = lambda *_: "before"
                asked.ask("outage")
                away_answers = asked.ask(*paths)
                assert away_answers == "".join("s" if path in known else "n" for path in paths)
                known.update(paths)
                there.update(known)
                back(proxy, asked)
            case "loss":
                r.flushall()
                other = BloomFilter(NAME, 1000, 1e-6, client=r)
                there = {*known}
                before = asked.stat("refills")
                asked.ask("loss")
                refilled(asked, before + 1)
            case _:
                expected = "".join("s" if path in there else "n" for path in paths)
                assert asked.ask(*paths) == expected
                known.update({*paths} - there)
                there.update(paths)
