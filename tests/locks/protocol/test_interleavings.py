"""Every interleaving of a few clients, with crashes, losses and naps, up to a bound.

What is checked in each world and at each step stands in lock_explorer.py and lock_model.py. The
numbers are exact: a change of the protocol or of the model changes them, and is to be looked at.
"""

from __future__ import annotations

import pytest
from lock_explorer import Explored, explore
from lock_model import LEASE_MS, Budget, Kind

ONE = Kind()
TWICE = Kind(rounds=2)
ON_TRIAL = Kind(trial_ms=LEASE_MS // 2)
READER = Kind(b"r")
READER_ON_TRIAL = READER._replace(trial_ms=LEASE_MS // 2)
OWNER = Kind(b"o", joins=True)
ALL = Budget(crashes=1, losses=1, naps=1, renewals=1, mutes=1)

WORLDS = [
    ((ONE, ONE), Budget(), Explored(117, 272, 3)),
    ((ONE, ONE), ALL, Explored(21_925, 66_019, 842)),
    ((ON_TRIAL, ON_TRIAL), ALL, Explored(20_961, 63_239, 686)),
    ((TWICE, TWICE), Budget(crashes=1, losses=1), Explored(9_143, 29_267, 289)),
    ((READER, ONE), ALL._replace(mutes=0), Explored(14_429, 43_105, 434)),
    ((ONE, ONE, ONE), Budget(crashes=1), Explored(8_095, 26_175, 113)),
    ((ONE, ONE, ONE), Budget(losses=1), Explored(13_293, 47_115, 11)),
    ((ONE, ONE, ONE), Budget(naps=1), Explored(27_937, 94_817, 10)),
    ((READER, READER, ONE), Budget(crashes=1), Explored(3_805, 12_122, 105)),
    ((READER_ON_TRIAL, READER, ONE), Budget(renewals=1), Explored(3_787, 12_477, 10)),
    ((READER, READER, ONE), Budget(losses=1), Explored(6_892, 23_197, 11)),
    ((READER, ONE, ONE), Budget(crashes=1), Explored(6_527, 20_893, 105)),
    ((OWNER, OWNER, ONE), Budget(crashes=1), Explored(3_402, 10_784, 104)),
    ((OWNER, READER, ONE), Budget(crashes=1), Explored(5_209, 16_470, 97)),
]


@pytest.mark.parametrize(("kinds", "budget", "expected"), WORLDS, ids=map(str, range(len(WORLDS))))
def test_every_interleaving(kinds, budget, expected):
    explored = explore(kinds, budget)
    print(explored)
    assert explored == expected
