"""A randomized model of filters by name on one server; see whole_model."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest
import redis
from whole_model import KINDS, Model

from bloomlock import BloomlockError

ROUNDS = 5


@pytest.mark.parametrize("kind", KINDS)
def test_no_item_is_lost_or_invented(r, valkey, tmp_path, kind):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    changes: Counter[str] = Counter()
    answers = forgotten = inherited = lost = 0
    for number in range(ROUNDS):
        r.flushall()
        model = Model(valkey, f"{seed} {number}", kind, tmp_path)
        try:
            violations = model.run()
        except BloomlockError as error:
            pytest.fail(f"seed {seed} {number}: {error!r}")
        assert violations == [], f"seed {seed} {number}: {model.changes}"
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
