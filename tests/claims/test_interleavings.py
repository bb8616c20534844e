"""Every interleaving of two and three workers on one item, up to a bound.

The numbers are exact: a change of the model or of the explorer changes them, and is to be looked
at.
"""

from __future__ import annotations

import pytest
from claim_explorer import Budget, explore

WORLDS = [
    (2, Budget(), {}, (18, 28)),
    (2, Budget(crashes=1, losses=2, lates=1, expiries=2, renewals=1), {}, (13_980, 51_760)),
    (2, Budget(lates=1, expiries=2, errors=1), {"rounds": 2, "max_attempts": 2}, (13_319, 40_618)),
    (2, Budget(losses=1, expiries=1, errors=2), {"rounds": 2, "max_attempts": 1}, (999, 2_600)),
    (2, Budget(crashes=1, expiries=2, errors=1), {"rounds": 2}, (2_593, 6_768)),
    (2, Budget(expiries=2, errors=1, retries=1), {"rounds": 2, "max_attempts": 1}, (1_767, 3_890)),
    (2, Budget(lates=1, expiries=1, retries=1, drops=1), {"max_attempts": 1}, (1_317, 3_262)),
    (2, Budget(losses=1, lates=1, expiries=1, offers=1), {}, (1_893, 5_030)),
    (3, Budget(expiries=2, drops=1), {"max_attempts": 1}, (722, 1_701)),
    (3, Budget(crashes=1, expiries=2), {}, (896, 2_385)),
    (3, Budget(losses=1, expiries=1), {}, (1_076, 3_261)),
    (3, Budget(lates=1, expiries=1), {}, (1_671, 5_079)),
]


@pytest.mark.parametrize(("workers", "budget", "options", "expected"), WORLDS)
def test_every_interleaving(workers, budget, options, expected):
    explored = explore(workers, budget, **options)
    print(explored)
    assert explored == expected
