"""The queue that processes share, step by step, on one server and on a cluster."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pytest
import scrapy_redis.queue
import servers
from scrapy import Request, Spider
from scrapy.settings import Settings

from bloomlock import BloomFilter
from bloomlock.errors import ConfigurationError
from scrapy_ext.request_queue import Exchange, Push, RequestQueue
from scrapy_ext.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis
    from redis import RedisCluster

    Make = Callable[..., RequestQueue]

SPIDER = Spider("spider")
CLASSES = ("PriorityQueue", "FifoQueue", "LifoQueue")


def queue_of(client: Any, name: str = "pages", **settings: Any) -> RequestQueue:
    """Return the queue as one more process has it, which has begun."""
    shards = settings.pop("shards", 1)
    shared = BloomFilter(name, 10_000, client=client, on_lost="recreate", shards=shards)
    made = RequestQueue(shared, client, SPIDER, QueueSettings.read(Settings(settings)))
    made.exchange(Exchange(0))
    return made


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[redis.Redis]]:
    with servers.cluster(5000) as made:
        yield made


@pytest.fixture
def cluster(nodes: list[redis.Redis]) -> Iterator[RedisCluster]:
    with servers.emptied(nodes) as made:
        yield made


@pytest.fixture(params=["one server", "cluster"])
def server(request: pytest.FixtureRequest) -> Any:
    """A client of one server, or of a cluster."""
    return request.getfixturevalue("r" if request.param == "one server" else "cluster")


@pytest.fixture
def make(server: Any) -> Make:
    return lambda **settings: queue_of(server, **settings)


def push_of(queue: RequestQueue, path: int | str, mode: Any = "n", priority: int = 0) -> Push:
    request = Request(f"http://site/{path}", priority=priority)
    return Push(request, f"{path}".encode(), mode, queue.encode(request, mode))


def paths(queue: RequestQueue, got: list[tuple[bytes, bytes]]) -> list[str]:
    return [queue.decode(entry).url.rpartition("/")[2] for _, entry in got]


def end_lease(server: Any, queue: RequestQueue) -> None:
    """Let a process be dead, as the server sees it."""
    assert server.zadd(f"{queue.key}:workers", {queue.worker: 1}, xx=True) == 0


def left(server: Any) -> list[bytes]:
    return [key for key in server.scan_iter("*") if b"spider" in key]


def test_a_step_tests_adds_pushes_and_takes(make: Make) -> None:
    one = make()
    first = one.exchange(Exchange(1, [push_of(one, path) for path in (1, 2, 1)], wanted=1))
    assert first.pushed == [True, True, False]
    assert (first.waiting, first.taken, paths(one, first.got)) == (1, 1, ["1"])
    again = [push_of(one, 1), push_of(one, 2, "a"), push_of(one, 3, "r"), push_of(one, 3)]
    ids = [identity for identity, _ in first.got]
    second = one.exchange(Exchange(2, again, ids, wanted=9))
    # The second request waits twice now.
    assert second.pushed == [False, True, True, False]
    assert sorted(paths(one, second.got)) == ["2", "2", "3"]
    assert (second.waiting, second.taken) == (0, 3)
    # What is not recorded is new again.
    third = [push_of(one, 4, "e"), push_of(one, 4, "e"), push_of(one, 4), push_of(one, 4, "e")]
    assert one.exchange(Exchange(3, third)).pushed == [True, True, True, False]


@pytest.mark.parametrize("mode", ["e", "a", "r"])
def test_equal_requests_that_are_not_refused_wait_together(make: Make, mode: Any) -> None:
    one, two, reader = (make() for _ in range(3))
    for each in (one, two):
        each.exchange(Exchange(1, [push_of(each, 1, mode), push_of(each, 1, mode)]))
    answer = reader.exchange(Exchange(1, wanted=9))
    requests = [reader.decode(entry) for _, entry in answer.got]
    assert [(request.url, request.meta) for request in requests] == [("http://site/1", {})] * 4


@pytest.mark.parametrize("kind", CLASSES)
def test_the_order_is_that_of_scrapy_redis(r: redis.Redis, kind: str, seed: int) -> None:
    name = f"scrapy_redis.queue.{kind}"
    ours = queue_of(r, SCHEDULER_QUEUE_CLASS=name)
    theirs = getattr(scrapy_redis.queue, kind)(r, SPIDER, "%(spider)s:requests")
    priorities = random.Random(seed).choices(range(-3, 4), k=30)
    ours.exchange(Exchange(1, [push_of(ours, path, "n", of) for path, of in enumerate(priorities)]))
    expected = [theirs.pop().url.rpartition("/")[2] for _ in range(30)]
    for path, of in enumerate(priorities):
        theirs.push(Request(f"http://site/{path}", priority=of))
    got = [paths(ours, ours.exchange(Exchange(2 + n, wanted=1)).got)[0] for n in range(10)]
    # What a process had taken and not done is taken again, in the same order.
    end_lease(r, ours)
    other = queue_of(r, SCHEDULER_QUEUE_CLASS=name)
    assert paths(other, other.exchange(Exchange(1, wanted=50)).got) == expected
    assert got == expected[:10]


def test_a_repeated_step_is_not_carried_out_twice(make: Make) -> None:
    one = make()
    step = Exchange(1, [push_of(one, 1), push_of(one, 2, "a"), push_of(one, 1)], wanted=2)
    first = one.exchange(step)
    assert one.exchange(step) == first
    assert (first.pushed, first.waiting, first.taken) == ([True, True, False], 0, 2)


def test_requests_of_a_dead_process_wait_again(server: Any, make: Make) -> None:
    dead, living = make(), make()
    dead.exchange(Exchange(1, [push_of(dead, path) for path in range(5)], wanted=3))
    assert living.exchange(Exchange(1, wanted=9)).taken == 5
    end_lease(server, dead)
    answer = living.exchange(Exchange(2, wanted=9))
    assert (answer.recovered, len(answer.got), answer.taken) == (3, 3, 5)
    late = dead.exchange(Exchange(2, [push_of(dead, 7)], wanted=1))
    assert late.was_unknown
    assert paths(dead, late.got) == ["7"]


def test_start_requests_are_pushed_once_in_a_run(server: Any, make: Make) -> None:
    one, two = make(), make()
    start = one.exchange(Exchange(1, [push_of(one, 0, "s"), push_of(one, 0)], wanted=1))
    assert start.pushed == [True, False]
    assert two.exchange(Exchange(1, [push_of(two, 0, "s")])).pushed == [False]
    end_lease(server, one)
    two.leave()
    # The dead process had not done it: the run goes on.
    three = make()
    again = three.exchange(Exchange(1, [push_of(three, 0, "s")], wanted=1))
    assert (again.pushed, paths(three, again.got)) == ([False], ["0"])
    three.exchange(Exchange(2, done=[again.got[0][0]]))
    three.leave()
    assert left(server) == []
    four = make()
    assert four.exchange(Exchange(1, [push_of(four, 0, "s")])).pushed == [True]
    assert four.exchange(Exchange(2, [push_of(four, 0)])).pushed == [False]


def test_a_queue_is_emptied_by_the_last_process_only(server: Any, make: Make) -> None:
    one, two = make(), make()
    one.exchange(Exchange(1, [push_of(one, path) for path in range(5)], wanted=3))
    assert not one.leave(empty=True)
    assert two.exchange(Exchange(1)).waiting == 5
    assert two.leave(empty=True)
    assert left(server) == []


class Workers:
    """Processes that follow a random graph; they die, lose replies and are late at any step."""

    def __init__(self, chance: random.Random, server: Any, make: Make) -> None:
        self.chance = chance
        self.server = server
        self.make = make
        self.links = {page: chance.choices(range(80), k=5) for page in range(80)}
        self.fetched: Counter[int] = Counter()
        self.given_up = 0
        self.all = [Worker(self) for _ in range(3)]

    def reachable(self) -> set[int]:
        """The pages that a single crawl finds."""
        seen, found = {0}, deque([0])
        while found:
            new = set(self.links[found.popleft()]) - seen
            seen |= new
            found.extend(new)
        return seen


class Worker:
    """One process."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.queue = workers.make()
        self.number = 1
        self.has: list[tuple[bytes, int]] = []
        self.waiting = 1
        self.step([push_of(self.queue, 0, "s")])

    def step(self, pushes: list[Push], done: tuple[bytes, ...] = (), wanted: int = 0) -> None:
        """Make a step; its reply may be lost."""
        step = Exchange(self.number, pushes, done, wanted)
        self.number += 1
        answer = self.queue.exchange(step)
        if self.workers.chance.random() < 0.2:
            repeated = self.queue.exchange(step)
            assert (repeated.pushed, repeated.got) == (answer.pushed, answer.got)
        if answer.was_unknown:
            self.workers.given_up += len(self.has)
            self.has = []
        got = map(int, paths(self.queue, answer.got))
        self.has += zip((identity for identity, _ in answer.got), got, strict=True)
        self.waiting = answer.waiting + answer.taken

    def work(self) -> None:
        """Do a page, or get some; sometimes end in the middle of one."""
        chance, workers = self.workers.chance, self.workers
        if not self.has:
            self.step([], wanted=chance.randint(1, 4))
            return
        identity, page = self.has.pop(chance.randrange(len(self.has)))
        workers.fetched[page] += 1
        pushes = [push_of(self.queue, link) for link in workers.links[page]]
        cut = chance.randrange(len(pushes))
        self.step(pushes[:cut])
        end = chance.random()
        if end > 0.1:
            self.step(pushes[cut:], (identity,), wanted=chance.randint(0, 2))
            return
        end_lease(workers.server, self.queue)
        self.has.append((identity, page))
        workers.given_up += 1
        if end > 0.03:  # else it was only stopped for longer than its lease
            workers.given_up += len(self.has)
            workers.all[workers.all.index(self)] = Worker(workers)


@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_is_lost_whichever_process_dies(r: redis.Redis, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    name = f"scrapy_redis.queue.{kind}"
    workers = Workers(chance, r, lambda: queue_of(r, SCHEDULER_QUEUE_CLASS=name))
    worker = workers.all[0]
    while worker.waiting:
        worker = chance.choice(workers.all)
        worker.work()
    assert set(workers.fetched) == workers.reachable()
    assert workers.fetched.total() <= len(workers.fetched) + workers.given_up
    for worker in workers.all:
        worker.queue.leave()
    assert left(r) == []


class Custom(scrapy_redis.queue.LifoQueue):
    """Its requests have another form."""

    def _encode_request(self, request: Request) -> bytes:
        return request.url.encode()

    def _decode_request(self, encoded_request: bytes) -> Request:
        return Request(encoded_request.decode())


def test_a_class_of_the_project_may_have_another_form(r: redis.Redis) -> None:
    one = queue_of(r, SCHEDULER_QUEUE_CLASS=Custom, SCHEDULER_QUEUE_KEY="mine:%(spider)s")
    answer = one.exchange(Exchange(1, [push_of(one, 1)], wanted=1))
    assert answer.got[0][1].partition(b" ")[2] == b"http://site/1"
    assert (one.key, paths(one, answer.got)) == ("mine:spider", ["1"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"SCHEDULER_QUEUE_CLASS": "no.such"}, "the queue cannot be used: No module named 'no'"),
        ({"SCHEDULER_QUEUE_CLASS": dict}, "SCHEDULER_QUEUE_CLASS is .*dict.*; allowed are"),
        ({"SCHEDULER_SERIALIZER": "random"}, "SCHEDULER_QUEUE_CLASS .*'loads'"),
        ({"BLOOMLOCK_LEASE": 0}, "BLOOMLOCK_LEASE is 0; allowed is a number above 0"),
        ({"SCHEDULER_IDLE_BEFORE_CLOSE": -1}, "SCHEDULER_IDLE_BEFORE_CLOSE is -1; allowed is"),
        ({"SCHEDULER_PERSIST": "maybe"}, "SCHEDULER_PERSIST is 'maybe'; allowed are True and"),
    ],
)
def test_settings_that_make_no_queue_are_refused(
    r: redis.Redis, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        queue_of(r, **settings)


def test_on_a_cluster_queue_and_filter_lie_on_one_node(cluster: RedisCluster) -> None:
    assert queue_of(cluster).key == "spider:requests:{pages}"
    assert queue_of(cluster, SCHEDULER_QUEUE_KEY="spider:{pages}:mine").key == "spider:{pages}:mine"
    assert queue_of(cluster, "100%").key == "spider:requests:{100%25}"
    with pytest.raises(ConfigurationError, match=r"SCHEDULER_QUEUE_KEY is 'mine'; allowed .*\{p\}"):
        queue_of(cluster, "p", SCHEDULER_QUEUE_KEY="mine")
    with pytest.raises(ConfigurationError, match="'many' has 6 shards; on a cluster the scheduler"):
        queue_of(cluster, "many", shards=6)
