"""Whatever is done to a filter, it answers as a Python set would."""

from __future__ import annotations

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bloomlock import BloomFilter

# At this rate and with so few items a false positive would be a wonder, so equality is asked.
CAPACITY = 2000
SHAPES = {
    "classic": {"error_rate": 1e-12},
    "seeded": {"error_rate": 1e-12, "seeds": range(40)},
    "blocked": {"error_rate": 1e-9, "layout": "blocked"},
}

items = st.one_of(st.binary(max_size=8), st.text(max_size=6), st.sampled_from("abcdef"))
batches = st.lists(items, max_size=40)
routes = st.sampled_from(["auto", "items", "script", "bitmap"])


def as_bytes(item: str | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.encode()


class Model(RuleBasedStateMachine):
    url: str
    strategy: str
    decode: bool

    @initialize(shards=st.integers(1, 3), shape=st.sampled_from(list(SHAPES)))
    def create(self, shards: int, shape: str) -> None:
        self.client = redis.Redis.from_url(self.url, decode_responses=self.decode)
        self.client.flushall()
        self.seen: set[bytes] = set()
        self.filter = BloomFilter(
            "model",
            CAPACITY,
            client=self.client,
            strategy=self.strategy,
            shards=shards,
            **SHAPES[shape],
        )

    def offer(self, item: str | bytes) -> bool:
        data = as_bytes(item)
        new = data not in self.seen
        self.seen.add(data)
        return new

    @rule(item=items)
    def add(self, item: str | bytes) -> None:
        assert self.filter.add(item) == self.offer(item)

    def possible(self, route: str) -> str:
        return "items" if self.strategy == "lock" else route

    @rule(batch=batches, route=routes)
    def add_many(self, batch: list[str | bytes], route: str) -> None:
        new = self.filter.add_many(iter(batch), route=self.possible(route))
        assert new == [self.offer(item) for item in batch]

    @rule(batch=batches, route=routes)
    def update(self, batch: list[str | bytes], route: str) -> None:
        self.filter.update(batch, route=self.possible(route))
        for item in batch:
            self.offer(item)

    @rule(item=items)
    def exists(self, item: str | bytes) -> None:
        assert self.filter.exists(item) == (as_bytes(item) in self.seen)
        assert (item in self.filter) == (as_bytes(item) in self.seen)

    @rule(batch=batches, route=routes)
    def exists_many(self, batch: list[str | bytes], route: str) -> None:
        seen = self.filter.exists_many(batch, route=self.possible(route))
        assert seen == [as_bytes(item) in self.seen for item in batch]

    @rule()
    def clear(self) -> None:
        self.filter.clear()
        self.seen.clear()

    @rule()
    def open_again(self) -> None:
        self.filter = BloomFilter.open("model", client=self.client, strategy=self.strategy)

    @rule()
    def move_to_a_copy_and_back(self) -> None:
        copied = self.filter.copy("other")
        self.filter.delete()
        self.filter = copied.copy("model")
        copied.delete()

    @invariant()
    def all_that_was_added_is_seen(self) -> None:
        if getattr(self, "seen", None):
            assert all(self.filter.exists_many(self.seen))

    def teardown(self) -> None:
        if hasattr(self, "client"):
            assert self.filter.count() == pytest.approx(len(self.seen), abs=3)
            self.client.close()


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "pipeline", "lock"])
def test_as_a_set(server_url, strategy, decode):
    machine = type("Machine", (Model,), {"url": server_url, "strategy": strategy, "decode": decode})
    case = machine.TestCase
    # Shrinking a failure of forty commands a step would take longer than reading it.
    case.settings = settings(
        max_examples=10,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        print_blob=True,
    )
    case().runTest()
