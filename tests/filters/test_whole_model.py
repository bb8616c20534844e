"""A randomized model of filters by name on one server; see whole_model."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
import redis
from randomized import naming
from whole_model import KINDS, UNDER_WAY, Generation, Model

ROUNDS = 5


@pytest.mark.parametrize("kind", KINDS)
def test_no_item_is_lost_or_invented(r, valkey, tmp_path, kind, seed):
    changes: Counter[str] = Counter()
    answers = forgotten = inherited = lost = 0
    for number in range(ROUNDS):
        r.flushall()
        model = Model(valkey, f"{seed} {number}", kind, tmp_path)
        with naming(model):
            assert model.run() == []
        changes += model.changes
        answers += model.answers
        forgotten += model.forgotten
        inherited += model.inherited
        lost += model.lost
        left = [key for key in r.scan_iter("*:next:*") if r.ttl(key) < 0]
        assert left == []
        assert all(r.type(key) != b"string" or r.ttl(key) >= -1 for key in r.scan_iter())
    print(f"{answers} answers, {forgotten} forgotten, {inherited} known of copies, {lost} losses")
    print(dict(changes))
    assert sum(changes.values()) > ROUNDS
    with contextlib.suppress(redis.RedisError):
        r.flushall()


def test_what_a_worker_has_under_way_may_come_whatever_another_is_done_with(tmp_path):
    model = Model("redis://unused", "0", "bitmap", tmp_path)
    model._try(0, ["a"], UNDER_WAY)
    model._try(1, ["a"], 0)
    model.generations[1] = Generation(next(model.ticks), "a")
    assert model.possible(1) == {"a"}
    model._try(0, ["a"], 0)
    model.generations[2] = Generation(next(model.ticks), "a")
    assert model.possible(2) == set()
