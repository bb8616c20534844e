"""Whatever workers do, claims go by the rules: one owner, one commit, no item is forgotten."""

from __future__ import annotations

import pytest
from claim_model import KINDS, STEPS, Round
from randomized import naming

ROUNDS, CALLS = 3, 100


def run_rounds(kind, seed, clock, number):
    done = set()
    for each in range(number):
        made = Round(kind, f"{seed}/{each}", clock)
        with naming(made):
            made.run(CALLS)
        done |= made.done.keys()
    assert done == STEPS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_claims_go_by_the_rules(clock, seed, kind):
    run_rounds(kind, seed, clock, ROUNDS)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_in_hundreds_of_rounds(clock, seed, kind):
    run_rounds(kind, seed, clock, 500)
