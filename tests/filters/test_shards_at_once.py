"""A batch over several shards goes to all of them at once, and each answer is about its own item.

Round trips are counted, not timed.
"""

from __future__ import annotations

import random

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from strategies import STRATEGIES, maker_of
from turns import Turns

from bloomlock import BloomFilter
from bloomlock.effects import ConnectionLost, Parallel, Pause
from bloomlock.errors import BatchError, FilterLostError, OutcomeUnknownError
from bloomlock.filters import answers

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
    ("atomic", "bitmap", 2, 1),
    ("lua", "bitmap", 2, 1),
]


@pytest.mark.parametrize("shards", [1, 64])
@pytest.mark.parametrize(("strategy", "route", "adding", "testing"), COUNTED)
def test_a_batch_costs_the_round_trips_of_one_shard(
    r, valkey, turns, strategy, route, adding, testing, shards
):
    if route == "bitmap":
        # The reply of a single bitmap goes past the parser, whose reads are counted.
        shards = max(shards, 2)
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
        "created": 10, "attached": 3, "counted": 1, "known": 3, "cleared": 9, "deleted": 4,
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_known_after_a_loss_is_true_and_what_is_unknown_is_reported(
    r, proxy, through, strategy, seed
):
    chance = random.Random(seed)
    routes = ("auto", "items")
    if strategy in ("atomic", "lua"):
        routes += ("bitmap",)
    for turn in range(2 if strategy == "lock" else 5):
        print(f"turn {turn}")
        shards = chance.choice([2, 5, 16])
        maker = {"client": r, "strategy": maker_of(strategy)}
        whole = BloomFilter("f", 2000, 1e-12, **maker, shards=shards)
        made = BloomFilter.open("f", client=through, strategy=strategy, on_lost="recreate")
        history = History(BloomFilter.open("f", **maker), proxy, made, chance)
        for _ in range(6):
            history.go_on(chance.choice(routes))
        there = sorted(history.there)
        # No false negative, whatever was lost; read by another object.
        assert BloomFilter.open("f", **maker).exists_many(there) == [True] * len(there)
        whole.delete()


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
