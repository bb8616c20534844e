"""The crawl on the server, step by step, on one server and on a cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler

from bloomlock.catalog import list_filters
from bloomlock.errors import ConfigurationError, FilterLostError
from scrapy_ext.crawl_state import Crawl, CrawlRecord, keys_of
from scrapy_ext.requests import Page, RequestCodec
from scrapy_ext.settings import CrawlSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    Begin = Callable[..., "Worker"]

CODEC = RequestCodec(None)
HOUR = {"BLOOMLOCK_LEASE": 3600}
FIFO = "scrapy.squeues.FifoMemoryQueue"


class PageSpider(Spider):
    name = "pages"


class Worker:
    """One process, as the server sees it."""

    def __init__(
        self,
        client: Any,
        pace: dict[str, Any] | None = None,
        attributes: dict[str, str] | None = None,
        overwrites: str = "",
        **settings: Any,
    ) -> None:
        crawler = Crawler(PageSpider, {"BLOOMLOCK_CAPACITY": 10_000, **HOUR, **settings})
        self._numbers = count()
        every = {"limit": 8, "delay_ms": 0, "slots": {}}
        read = replace(CrawlSettings.read(crawler), attributes=attributes)
        self.crawl = Crawl(client, read, every | (pace or {}))
        self.begun = self.crawl.begin(overwrites=overwrites)

    def step(self, *paths: str, mode: Any = "n", is_here: bool = False, **what: Any) -> Any:
        """Push requests and return the answer; a path is HOST/PAGE or HOST/PAGE/PRIORITY."""
        pushes = []
        for path in paths:
            host, page, *priority = path.split("/")
            request = Request(f"http://{host}/{page}", priority=int((priority or [0])[0]))
            entry = b"" if is_here else CODEC.encode(request)
            pushes.append(Page(request, host, path.encode(), mode, entry))
        return self.crawl.exchange(pushes, {"step": next(self._numbers), **what})

    def take(self, wanted: int = 99, **what: Any) -> list[str]:
        return paths_of(self.step(wanted=wanted, **what))

    def idle(self, **what: Any) -> str:
        return self.step(wanted=9, idle=True, **what).state


def paths_of(answer: Any) -> list[str]:
    return [CODEC.decode(entry).url.removeprefix("http://") for _, _, entry in answer.got]


def end_lease(client: Any, worker: Worker) -> None:
    client.zadd(worker.crawl.keys[5], {worker.crawl.worker: 1})


@pytest.fixture(params=["one server", "cluster"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("r" if request.param == "one server" else "cluster")


@pytest.fixture
def begin(server: Any) -> Begin:
    return lambda *args, **options: Worker(server, *args, **options)


def test_a_step_tests_adds_queues_and_takes(begin: Begin) -> None:
    one = begin()
    first = one.step("a/1", "a/2", "a/1", wanted=1)
    assert first.pushed == [True, True, False]
    assert (paths_of(first), first.waiting, first.taken) == (["a/2"], 1, 1)
    again = one.step("a/1", mode="a", done=[first.got[0][0]])
    assert (again.pushed, again.waiting, again.taken) == ([True], 2, 0)
    # What stays in the process is in the filter when it is done.
    assert one.step("a/3", mode="l", is_here=True).pushed == [True]
    assert one.step("a/3", "a/3").pushed == [True, False]
    assert [one.step("a/4", mode=mode, is_here=True).pushed[0] for mode in "lrla"] == [
        *(True, True, False, True),
    ]
    assert one.step().waiting == 3


def test_within_a_host_the_order_is_scrapys(begin: Begin) -> None:
    one = begin()
    one.step("a/1", "a/2/5", "a/3/-1", "a/4/5", "a/5")
    assert one.take() == ["a/4", "a/2", "a/5", "a/1", "a/3"]
    fifo = begin(BLOOMLOCK_NAME="fifo", SCHEDULER_MEMORY_QUEUE=FIFO)
    fifo.step("a/1", "a/2/5", "a/3", "a/4/5")
    assert fifo.take() == ["a/2", "a/4", "a/1", "a/3"]


def test_hosts_take_turns_and_one_that_is_at_its_limit_is_passed_over(begin: Begin) -> None:
    one = begin({"limit": 2})
    one.step(*(f"a/{page}" for page in range(9)), "b/0", "c/0", "c/1")
    assert one.take(4) == ["a/8", "b/0", "c/1", "a/7"]
    assert one.take(9, busy={"a": 2}) == ["c/0"]
    assert one.take(9, busy={"a": 1}) == ["a/6"]
    # A host of which the name begins with that of another is another.
    one.step("aa/0", "a.b/0")
    assert one.take(9, busy={"a": 2}) == ["a.b/0", "aa/0"]


def test_a_delay_lies_between_two_requests_to_a_host_for_all_processes(
    server: Any, begin: Begin
) -> None:
    pace = {"limit": 2, "delay_ms": 3_600_000, "slots": {"fast": (2, 0)}}
    one, two = begin(pace), begin(pace)
    one.step("slow/1", "slow/2", "fast/1", "fast/2")
    answer = one.step(wanted=9)
    assert paths_of(answer) == ["fast/2", "slow/2", "fast/1"]
    assert answer.due_s is not None
    assert 3050 < answer.due_s <= 3150
    assert two.take() == []
    # A host may be asked an eighth of its delay early, and keeps its times all the same.
    (due,) = [score for host, score in server.zrange(one.crawl.keys[2], 0, -1, withscores=True)]
    server.zadd(one.crawl.keys[2], {"slow": due - 3_140_000})
    assert two.take() == []
    server.zadd(one.crawl.keys[2], {"slow": due - 3_160_000})
    assert two.take() == ["slow/1"]
    assert server.zscore(one.crawl.keys[2], "slow") == due + 440_000
    # An empty host keeps its time.
    one.step("slow/3")
    assert two.take() == []


def test_what_a_dead_process_had_waits_in_its_old_place(server: Any, begin: Begin) -> None:
    dead, living = begin(), begin()
    dead.step("a/1", "a/2", "a/3")
    taken = dead.take(2)
    assert taken == ["a/3", "a/2"]
    assert living.step().taken == 2
    end_lease(server, dead)
    answer = living.step(wanted=9)
    assert (answer.recovered, paths_of(answer)) == (2, ["a/3", "a/2", "a/1"])
    # It may go on.
    assert dead.take() == []
    assert dead.step("a/4", wanted=9).taken == 4
    assert living.step(dead=[dead.crawl.worker], wanted=9).recovered == 1


def test_who_closes_puts_back_what_it_has_not_done(begin: Begin) -> None:
    one = begin()
    one.step("a/1", "a/2", "a/3")
    got = one.step(wanted=2).got
    one.step(done=[got[0][0]])
    assert one.crawl.close(finished=False).waiting == 2
    two = begin()
    begun = two.begun
    assert (begun.what, len(begun.workers), begun.done, begun.waiting) == ("resumed", 0, 1, 2)
    assert two.take() == ["a/2", "a/1"]


def test_a_crawl_ends_when_all_are_idle_and_the_next_one_is_anew(server: Any, begin: Begin) -> None:
    one, two = begin(), begin()
    assert (one.begun.what, two.begun.what) == ("begun", "joined")
    taken = one.step("a/1", wanted=1).got
    assert two.idle() == "running"
    one.step(done=[taken[0][0]])
    # The first one has not said that it is idle.
    assert two.idle() == "running"
    assert one.idle() == "ended"
    # Who begins now begins anew, however long the others take to close.
    three = begin()
    assert three.begun.what == "begun"
    assert one.step("a/2").state == "gone"
    assert three.step("a/1").pushed == [True]
    assert two.step("a/2").state == "gone"
    one.crawl.close(finished=True)
    two.crawl.close(finished=True)
    assert three.take() == ["a/1"]
    assert len(list(server.scan_iter("*:meta"))) == 1


def test_a_push_makes_an_ended_crawl_run_and_one_that_stays_open_lets_it_wait(
    begin: Begin,
) -> None:
    one = begin()
    assert one.idle() == "ended"
    assert one.step("a/1").state == "running"
    one.step(done=[one.step(wanted=1).got[0][0]])
    assert one.idle(stays=True) == "waiting"
    two = begin()
    assert two.begun.what == "joined"
    assert two.idle() == "waiting"
    assert two.step("a/2").state == "running"
    assert one.take() == ["a/2"]


def test_others_see_how_a_crawl_stands(server: Any, begin: Begin) -> None:
    assert CrawlRecord(server, "pages").look().state == ""
    one = begin()
    one.step("a/1", "a/2", "b/1", "a/3")
    taken = one.step(wanted=1).got
    one.step(done=[taken[0][0]], wanted=1)
    now = CrawlRecord(server, "pages").look()
    assert (now.state, len(now.workers), now.done) == ("running", 1, 1)
    assert (now.waiting, now.taken, now.failed, dict(now.by_host)) == (2, 1, 0, {"a": 2, "b": 0})


def test_failed_requests_are_kept_and_put_back(server: Any, begin: Begin) -> None:
    one = begin()
    taken = one.step("a/1", "a/2", wanted=2).got
    assert one.step(failed=[(taken[0][0], "Error:\0\udcff")], done=[taken[1][0]]).failed == 1
    assert one.idle() == "ended"
    assert one.crawl.close(finished=True).failed == 1
    kept = CrawlRecord(server, "pages")
    assert [(why, CODEC.decode(entry).url) for entry, why in kept.failed()] == [
        ("Error: ?", "http://a/2")
    ]
    assert kept.settle(retry=True) == 1
    two = begin()
    assert (two.begun.what, two.take()) == ("resumed", ["a/2"])
    # The filter has stayed.
    assert two.step("a/1").pushed == [False]
    two.crawl.exchange([Page(None, "bad message", b"-", "f", b"{")], {"step": 99})
    assert kept.failed() == [(b"{", "bad message")]
    assert kept.settle(retry=False) == 1
    assert kept.failed() == []


def test_with_retries_it_waits_behind_everything_else(server: Any, begin: Begin) -> None:
    one = begin(BLOOMLOCK_RETRIES=1)
    taken = one.step("a/1", wanted=1).got
    assert one.step(failed=[(taken[0][0], "Error: 1")]).waiting == 1
    assert one.take() == []
    assert one.idle() == "running"
    (member,) = server.zrange(one.crawl.keys[3], 0, -1)
    server.zadd(one.crawl.keys[3], {member: 1})
    one.step("a/2/-9")
    answer = one.step(wanted=2)
    assert paths_of(answer) == ["a/2", "a/1"]
    assert one.step(failed=[(answer.got[1][0], "Error: 2")]).failed == 1


def test_others_at_work_are_not_begun_anew_and_texts_are_compared_where_both_have_them(
    server: Any, begin: Begin
) -> None:
    one = begin(attributes={"category": "1"})
    one.step("a/1")
    begin(attributes={"category": "1"}, overwrites="items.jl").crawl.close(finished=False)
    begin().crawl.close(finished=False)
    with pytest.raises(ConfigurationError, match="1 processes are at work"):
        begin(BLOOMLOCK_RESUME=False)
    end_lease(server, one)
    anew = begin(BLOOMLOCK_RESUME=False, attributes={"category": "2"}, overwrites="items.jl")
    assert (anew.begun.what, anew.take()) == ("begun", [])


def test_a_crawl_or_a_filter_that_is_gone_is_noticed(server: Any, begin: Begin) -> None:
    one = begin()
    one.step("a/1")
    keys = [*server.scan_iter(f"bloomlock:{one.crawl.id}:*")]
    assert len(keys) == 2
    for key in keys:
        server.delete(key)
    assert one.step("a/2").state == "gone"
    with pytest.raises(FilterLostError, match="begin anew: -s BLOOMLOCK_RESUME=0"):
        begin()
    assert [*server.scan_iter(f"bloomlock:{one.crawl.id}:*")] == []
    server.delete(*keys_of("pages"))
    assert begin().begun.what == "begun"


def test_what_cannot_be_read_stays_among_the_failed_in_the_next_crawl(begin: Begin) -> None:
    """It is kept once more there before the record of the crawl before goes."""
    one = begin(BLOOMLOCK_PERSIST=True)
    one.crawl.exchange([Page(None, "bad", b"-", "f", b"old")], {"step": 50})
    assert (one.idle(), one.idle()) == ("ended", "ended")
    one.crawl.close(finished=True)
    two = begin(BLOOMLOCK_PERSIST=True)
    assert two.begun.what == "begun"
    for entries in two.crawl.failed_before():
        pushes = [Page(None, "bad again", b"-", "f", entry) for entry in entries]
        two.crawl.exchange(pushes, {"step": 50})
    assert two.crawl.failed() == [(b"old", "bad again")]


def test_the_last_one_to_leave_takes_the_queue_along(server: Any, begin: Begin) -> None:
    one, two = begin(), begin()
    done = one.step("a/1", wanted=1).got
    one.step(done=[done[0][0]])
    two.idle()
    assert one.idle() == "ended"
    assert not one.crawl.close(finished=True).is_over
    assert two.crawl.close(finished=True).is_over
    assert [*server.scan_iter("*pages*")] == [b"{pages}:crawl"]
    assert list_filters(client=server, prefix=f"bloomlock:{one.crawl.id}:") == []


def test_with_persist_the_next_crawl_begins_with_what_failed(server: Any, begin: Begin) -> None:
    one = begin(BLOOMLOCK_PERSIST=True)
    taken = one.step("a/1", wanted=1).got
    one.step(failed=[(taken[0][0], "Error: 1")])
    assert one.idle() == "ended"
    two = begin(BLOOMLOCK_PERSIST=True)
    assert two.begun.what == "begun"
    assert [[CODEC.decode(one).url for one in some] for some in two.crawl.failed_before()] == [
        ["http://a/1"]
    ]
    assert CrawlRecord(server, "pages").failed() == []
