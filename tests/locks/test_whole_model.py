"""One lock that threads and tasks use through objects of all kinds, while they are disturbed."""

from __future__ import annotations

from collections import Counter

import pytest
from lock_rounds import ACTIONS, LockRound, run_round
from randomized import naming

ROUNDS = 8
STEPS = 10


def run_rounds(url, seed, numbers):
    """Carry rounds out, one after the other."""
    done = Counter()
    for number in numbers:
        round_ = LockRound(f"{seed}/{number}")
        with naming(round_):
            run_round(url, round_, STEPS)
        done += round_.what
    return done


@pytest.mark.free_running
def test_holds_exclude_each_other_and_no_waiter_is_forgotten(r, valkey, seed):
    done = run_rounds(valkey, seed, range(ROUNDS))
    print(done)
    assert done["acquired"] > ROUNDS


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_same_in_thousands_of_rounds(r, valkey, seed):
    done = run_rounds(valkey, seed, range(3000))
    print(done)
    assert not {"acquired", "refused", "wipe", "scripts", "kill", *ACTIONS} - done.keys()
