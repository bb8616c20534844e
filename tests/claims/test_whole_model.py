"""Claims by threads, tasks and `@once`, while the filter changes and replies are lost."""

from __future__ import annotations

from collections import Counter

import pytest
from claim_model import KINDS, History
from claim_rounds import CHANGES, run_round
from claim_workers import WAYS
from randomized import naming

ROUNDS, FAULTY = 12, 4
"""In the suite, without faults and with."""
STEPS = 30


def run_rounds(url, seed, numbers):
    """Carry rounds out; every fourth has faults."""
    done, kinds = Counter(), Counter()
    for number in numbers:
        history = History(f"{seed}/{number}", faults=number % (ROUNDS // FAULTY + 1) == 0)
        with naming(history):
            run_round(url, history, STEPS)
        done += history.what
        kinds[history.kind] += 1
    return done, kinds


def test_each_item_is_done_once_and_none_is_forgotten(r, valkey, seed):
    done, _ = run_rounds(valkey, seed, range(ROUNDS + FAULTY))
    print(done)
    assert not WAYS.keys() - done.keys()


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_same_in_thousands_of_rounds(r, valkey, seed):
    done, kinds = run_rounds(valkey, seed, range(4000))
    print(done, kinds)
    assert not (WAYS | CHANGES).keys() - done.keys()
    assert not KINDS.keys() - kinds.keys()
