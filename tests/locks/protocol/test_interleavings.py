"""Every interleaving of a few clients, with crashes, losses and naps, up to a bound.

What is checked in each world and at each step stands in lock_explorer.py and lock_model.py. The
numbers are exact: a change of the protocol or of the model changes them, and is to be looked at.
"""

from __future__ import annotations

import pytest
from lock_explorer import Explored, explore
from lock_model import Budget, Kind

ONE = Kind()
TWICE = Kind(rounds=2)
READER = Kind(b"r")
OWNER = Kind(b"o", joins=True)
ALL = Budget(crashes=1, losses=1, naps=1, renewals=1, mutes=1)

WORLDS = [
    ((ONE, ONE), Budget(), Explored(121, 284, 3)),
    ((ONE, ONE), ALL, Explored(22_863, 69_751, 842)),
    ((TWICE, TWICE), Budget(crashes=1, losses=1), Explored(9_365, 30_085, 289)),
    ((READER, ONE), ALL._replace(mutes=0), Explored(15_111, 45_543, 434)),
    ((ONE, ONE, ONE), Budget(crashes=1, losses=1), Explored(38_307, 144_738, 254)),
    ((ONE, ONE, ONE), Budget(naps=1), Explored(29_902, 102_257, 10)),
    ((READER, READER, ONE), Budget(crashes=1), Explored(3_893, 12_311, 105)),
    ((READER, READER, ONE), Budget(losses=1), Explored(6_806, 22_992, 11)),
    ((READER, ONE, ONE), Budget(crashes=1), Explored(6_853, 21_877, 105)),
    ((OWNER, OWNER, ONE), Budget(crashes=1), Explored(3_460, 10_897, 104)),
    ((OWNER, READER, ONE), Budget(crashes=1), Explored(5_505, 17_308, 97)),
]


@pytest.mark.parametrize(("kinds", "budget", "expected"), WORLDS, ids=map(str, range(len(WORLDS))))
def test_every_interleaving(kinds, budget, expected):
    explored = explore(kinds, budget)
    print(explored)
    assert explored == expected
