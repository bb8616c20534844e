"""A batch over several shards goes to all of them at once, and each answer is about its own item.

Round trips are counted, not timed.
"""

from __future__ import annotations

import asyncio
import random
from itertools import product

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from strategies import BITMAPS, maker_of
from turns import Turns

from bloomlock import (
    AsyncBloomFilter,
    BatchError,
    BloomFilter,
    FilterLostError,
    OutcomeUnknownError,
)
from bloomlock.delivery import deliver
from bloomlock.effects import ConnectionLost, Parallel, Pause, Pipeline, Request
from bloomlock.filters import answers
from bloomlock.parallel import in_parallel, outcomes_of, writes_of

ITEMS = [str(number) for number in range(100)]
WARM = [f"warm {number}" for number in range(100)]


@pytest.fixture
def turns():
    return Turns()


@pytest.fixture
def through(proxy):
    with redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as made:
        made.ping()
        yield made


# Round trips of add_many and exists_many of 100 items. A batch by bitmap first asks whether
# transactions are allowed; of 64 SETBITs for each item not all go in one write.
COUNTED = [
    ("atomic", "items", 1, 1),
    ("lua", "items", 1, 1),
    ("transaction", "items", 1, 1),
    ("pipeline", "items", 1, 1),
    ("atomic", "script", 1, 1),
    ("atomic", "bitmap", 2, 1),
    ("lua", "bitmap", 2, 1),
]


@pytest.mark.parametrize("shards", [1, 16, 64])
@pytest.mark.parametrize(("strategy", "route", "adding", "testing"), COUNTED)
def test_a_batch_costs_the_round_trips_of_one_shard(
    r, valkey, turns, strategy, route, adding, testing, shards
):
    if (route, shards) == ("bitmap", 1):
        pytest.skip("the replies of one bitmap go past the parser, whose reads are counted")
    BloomFilter("f", 5000, 1e-9, client=r, shards=shards)
    with turns.client(valkey) as client:
        made = BloomFilter.open("f", client=client, strategy=strategy)
        # Scripts may be missing, and the connection may have to be opened.
        made.add_many(WARM, route=route)
        made.exists_many(WARM, route=route)
        assert turns.of(lambda: made.add_many(ITEMS, route=route)) == adding
        assert turns.of(lambda: made.update(ITEMS, route=route)) == adding
        assert turns.of(lambda: made.exists_many(ITEMS, route=route)) == testing
        assert made.add_many(ITEMS, route=route) == [False] * 100


@pytest.mark.parametrize("shards", [1, 64])
def test_the_same_with_asyncio(r, valkey, turns, shards):
    async def run():
        client = turns.async_client(valkey)
        made = await AsyncBloomFilter("f", 5000, 1e-9, client=client, shards=shards)
        await made.add_many(WARM, route="items")
        before = turns.count
        assert all(await made.add_many(ITEMS, route="items"))
        assert turns.count - before == 1
        assert all(await made.exists_many(ITEMS, route="items"))
        assert turns.count - before == 2
        await made.delete()
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("shards", [2, 64])
def test_other_operations_cost_the_round_trips_of_two_shards(r, valkey, turns, shards):
    with turns.client(valkey) as client:
        BloomFilter("warm", 5000, client=client, shards=shards).delete()
        found = {
            "created": turns.of(lambda: BloomFilter("f", 5000, client=client, shards=shards)),
            "attached": turns.of(lambda: BloomFilter.open("f", client=client)),
        }
        made = BloomFilter.open("f", client=client)
        made.update(WARM)
        found["counted"] = turns.of(made.count)
        found["known"] = turns.of(made.info)
        found["cleared"] = turns.of(made.clear)
        found["deleted"] = turns.of(made.delete)
    # An attachment looks at the descriptor, at the shards and at the fill.
    assert found == {
        "created": 10, "attached": 3, "counted": 1, "known": 3, "cleared": 9, "deleted": 3,
    }  # fmt: skip


class History:
    """Random batches, clears by others and lost replies, and what must be true of the answers.

    Attributes:
        there: Items that are in the filter.
        unknown: Items that may be.
    """

    def __init__(self, other, proxy, made, chance):
        self._other = other
        self._proxy = proxy
        self._made = made
        self._chance = chance
        self.there, self.unknown = set(), set()

    def go_on(self, route):
        chance = self._chance
        if chance.random() < 0.2:
            self._other.clear()
            self.there, self.unknown = set(), set()
        count = chance.choice([5, 20, 80])
        items = [str(number) for number in chance.sample(range(160), count)]
        self._lose(chance.choice([0, 1, 1, 2]))
        name = chance.choice(["add_many", "update", "exists_many"])
        try:
            answers = getattr(self._made, name)(items, route=route)
            answers = [True] * count if answers is None else answers
            assert len(answers) == count
        except (OutcomeUnknownError, BatchError) as error:
            assert name != "exists_many"
            assert error.added == 0
            answers = error.results
        except redis.ConnectionError:
            # Of a clear that was just found, for instance, nothing could be asked.
            answers = []
        self._proxy.judge = lambda _name, _number: "pass"
        known = dict(zip(items, answers, strict=False))
        for item in items:
            self._check(name, item, known.get(item))

    def _lose(self, most):
        left = [most]

        def judge(_name, _number):
            if left[0] and self._chance.random() < 0.05:
                left[0] -= 1
                return self._chance.choice(["before", "after"])
            return "pass"

        self._proxy.judge = judge

    def _check(self, name, item, answer):
        if name == "exists_many":
            expected = {item in self.there, item in self.unknown or item in self.there}
            assert answer in expected or answer is None
        elif answer is None:
            self.unknown |= {item} - self.there
        else:
            if name == "add_many" and item not in self.unknown:
                assert answer == (item not in self.there)
            self.there.add(item)
            self.unknown.discard(item)


@pytest.mark.parametrize(
    ("strategy", "layout"),
    [*product(BITMAPS, ["classic", "blocked"]), ("native", "classic")],
)
def test_what_is_known_after_a_loss_is_true_and_what_is_unknown_is_reported(
    r, proxy, through, strategy, layout, seed
):
    chance = random.Random(seed)
    routes = ("items",) if strategy in ("lock", "native") else ("auto", "items", "script", "bitmap")
    for turn in range(2 if strategy == "lock" else 5):
        print(f"turn {turn}")
        rate = 1e-12 if layout == "classic" else 1e-9
        shards = chance.choice([2, 5, 16])
        maker = {"client": r, "strategy": maker_of(strategy)}
        whole = BloomFilter("f", 2000, rate, **maker, shards=shards, layout=layout)
        made = BloomFilter.open("f", client=through, strategy=strategy, on_lost="recreate")
        history = History(BloomFilter.open("f", **maker), proxy, made, chance)
        for _ in range(6):
            history.go_on(chance.choice(routes))
        there = sorted(history.there)
        # No false negative, whatever was lost; read by another object.
        assert BloomFilter.open("f", **maker).exists_many(there) == [True] * len(there)
        whole.delete()


@pytest.mark.parametrize("verdict", ["before", "after"])
def test_an_update_sends_again_only_what_is_unknown(r, proxy, through, verdict):
    BloomFilter("f", 5000, 1e-9, client=r, shards=16)
    made = BloomFilter.open("f", client=through)
    made.update(WARM)
    for at in (0, 7, 15):
        items = [f"{at} {item}" for item in ITEMS]
        seen = len(proxy.seen)
        proxy.judge = lambda _name, n, cut=seen + at: verdict if n == cut else "pass"
        r.config_resetstat()
        made.update(items, route="items")
        calls = r.info("commandstats")["cmdstat_bitfield"]["calls"]
        assert calls == (16 if verdict == "before" else 17)
        assert all(made.exists_many(items))


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize("sent", [True, False])
def test_the_shard_whose_reply_was_lost_is_asked_again_only_if_it_was_not_sent(r, sent, count):
    made = BloomFilter("x", 100_000, client=r, shards=16)
    core = answers.add_many(made._state, ITEMS[:count], "items")
    asked = next(core)
    assert isinstance(asked, Parallel)
    outcomes = made._runtime.ask_all(asked.requests)
    missed = asked.requests[1].key
    lost = ConnectionLost(redis.ConnectionError("lost"), sent=sent, replies=[])
    unknown = {i for i in ITEMS[:count] if key_of(made, i) == missed}
    again = []
    with pytest.raises((OutcomeUnknownError, StopIteration)) as ended:
        step = core.send([*outcomes[:1], lost, *outcomes[2:]])
        while True:
            if isinstance(step, Pause):
                step = core.send(None)
                continue
            requests = step.requests if isinstance(step, Parallel) else [step]
            again += [one.key for one in requests]
            outcomes = made._runtime.ask_all(requests)
            step = core.send(outcomes if isinstance(step, Parallel) else outcomes[0])
    if sent:
        assert not again
        known = ended.value.results
        known += [None] * (count - len(known))
        expected = [None if i in unknown else True for i in ITEMS[:count]]
        assert known == expected
    else:
        assert again == [missed]
        # The shard had the items already: here the reply was taken from it for nothing.
        assert ended.value.value == [i not in unknown for i in ITEMS[:count]]


def key_of(made, item):
    view = made._state.view
    return view.shards[view.hasher.locate(item.encode())[0]].key


@pytest.mark.parametrize("count", [16, 100])
@pytest.mark.parametrize("which", [0, 5, 15])
def test_one_shard_of_another_generation_is_noticed(r, which, count):
    """A clear that is under way has written some shards, and others not yet."""
    made = BloomFilter("f", 5000, 1e-9, client=r, shards=16)
    view = made._state.view
    items = [number for number in ITEMS if view.hasher.locate(number.encode())[0] == which][:1]
    items += [f"more {number}" for number in range(count)]
    r.setrange(view.shards[which].key, 0, (view.header ^ 1).to_bytes(8, "big"))
    with pytest.raises(FilterLostError):
        made.add_many(items, route="items")


def test_a_shard_that_is_refused_leaves_the_others_known(r, valkey):
    made = BloomFilter("f", 5000, 1e-9, client=r, shards=8)
    items = [str(number) for number in range(300)]
    view = made._state.view
    mine = [n for n, item in enumerate(items) if view.hasher.locate(item.encode())[0] == 3]
    r.execute_command("ACL", "SETUSER", "some", "on", ">word", "+@all", "~*")
    with redis.Redis.from_url(valkey.replace("unix://", "unix://some:word@")) as client:
        opened = BloomFilter.open("f", client=client)
        allowed = [f"~{shard.key}*" for n, shard in enumerate(view.shards) if n != 3]
        r.execute_command("ACL", "SETUSER", "some", "resetkeys", *allowed)
        for batch in (items, items[:100]):
            with pytest.raises(BatchError) as caught:
                opened.add_many(batch, route="items")
            known = caught.value.results
            unknown = [n for n in range(len(batch)) if n >= len(known) or known[n] is None]
            assert unknown == [n for n in mine if n < len(batch)]
    r.execute_command("ACL", "DELUSER", "some")
    found = made.exists_many(items)
    assert [n for n, seen in enumerate(found) if not seen] == mine


# What `in_parallel` and its parts do, step by step.


def steps_of(core):
    """Return the steps of a core that gets an empty list of replies to each request."""
    steps = []
    answer = None
    try:
        while True:
            step = core.send(answer)
            steps.append(step)
            answer = [[b"1"]] * len(step.requests) if isinstance(step, Parallel) else [b"1"]
    except StopIteration as stop:
        return steps, stop.value


def asks(count, result, *, hold=False):
    for number in range(count):
        yield Request(f"{result} {number}", [b"x"], hold=hold)
    return result


def test_cores_of_different_lengths_go_together_and_keep_their_results():
    steps, results = steps_of(in_parallel([asks(1, "a"), asks(3, "b"), asks(0, "c"), asks(2, "d")]))
    assert results == ["a", "b", "c", "d"]
    assert [[request.key for request in step.requests] for step in steps] == [
        ["a 0", "b 0", "d 0"], ["b 1", "d 1"], ["b 2"],
    ]  # fmt: skip


def test_few_at_once_and_one_alone():
    steps, results = steps_of(in_parallel([asks(1, "a"), asks(1, "b"), asks(1, "c")], 2))
    assert results == ["a", "b", "c"]
    assert isinstance(steps[0], Parallel)
    assert steps[1] == Request("c 0", [b"x"])


def test_what_holds_a_connection_is_carried_out_to_its_end_before_the_others_go_on():
    steps, results = steps_of(in_parallel([asks(2, "a"), asks(2, "b", hold=True), asks(1, "c")]))
    assert results == ["a", "b", "c"]
    keys = [step.key if isinstance(step, Request) else step for step in steps[:2]]
    assert keys == ["b 0", "b 1"]


def test_pauses_are_one_pause():
    def pausing(seconds):
        yield Request("k", [b"x"])
        yield Pause(seconds)
        yield Request("k", [b"x"])
        return seconds

    steps, results = steps_of(in_parallel([pausing(1), pausing(3), pausing(2)]))
    assert results == [1, 3, 2]
    assert [step for step in steps if isinstance(step, Pause)] == [Pause(3)]
    assert len(steps) == 3


def test_only_what_was_not_sent_is_sent_again():
    """Of three requests the first was answered, the second cut off, the third never left."""

    def asking(key):
        try:
            return (yield from deliver(Request(key, [b"x"]), repeatable=False))
        except ConnectionLost as lost:
            return lost.sent

    core = in_parallel([asking("a"), asking("b"), asking("c")])
    requests = next(core).requests
    lost = ConnectionLost(OSError(), sent=True, replies=[1], written=2)
    assert core.send(outcomes_of(requests, [1], lost)) == Pause(0.0)
    assert [request.key for request in core.send(None).requests] == ["c"]
    with pytest.raises(StopIteration) as ended:
        core.send([[3]])
    assert ended.value.value == [[1], True, [3]]


def test_every_cut_of_a_pipeline_is_divided_among_its_requests():
    writes = _Writes([[b"3"], [b"4", b"5"]])
    requests = [Request("a", [b"1", b"2"]), Pipeline("b", writes), Request("c", [b"6"])]
    sizes = [2, 3, 1]
    for written in range(7):
        for answered in range(written + 1):
            lost = ConnectionLost(OSError(), sent=written > 0, replies=[], written=written)
            outcomes = outcomes_of(requests, list(range(answered)), lost)
            sent = got = 0
            for size, outcome in zip(sizes, outcomes, strict=True):
                if isinstance(outcome, ConnectionLost):
                    assert outcome.sent == (outcome.written > 0)
                    assert len(outcome.replies) < size
                    sent += outcome.written
                    got += len(outcome.replies)
                else:
                    assert len(outcome) == size
                    sent += size
                    got += size
            assert (sent, got) == (written, answered)


class _Writes(list):
    """Writes that count their commands."""

    def __len__(self):
        return sum(map(len, self.__iter__()))


def test_small_commands_go_in_one_write_and_few_are_unanswered():
    requests = [Request(str(number), [bytes(1000)]) for number in range(1000)]
    waiting = most = written = 0
    for answered, count, data in writes_of(requests):
        waiting = count - answered
        most = max(most, waiting)
        assert [len(part) for part in data] == [1000 * (count - written)]
        written = count
    assert written == 1000
    # Reading is what keeps the number down, and it is not read after each write.
    assert 200 <= most <= 450
