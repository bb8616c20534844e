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
ON_TRIAL = Kind(provisional_lease_ms=LEASE_MS // 2)
READER = Kind(b"r")
READER_ON_TRIAL = READER._replace(provisional_lease_ms=LEASE_MS // 2)
OWNER = Kind(b"o", may_join=True)
ALL = Budget(crashes=1, losses=1, naps=1, renewals=1, mutes=1)

WORLDS = [
    ((ONE, ONE), Budget(), Explored(117, 272, 3)),
    ((ONE, ONE), ALL, Explored(22_411, 67_085, 1_054)),
    ((ON_TRIAL, ON_TRIAL), ALL, Explored(21_219, 63_513, 926)),
    ((TWICE, TWICE), Budget(crashes=1, losses=1), Explored(9_915, 30_807, 481)),
    ((READER, ONE), ALL._replace(mutes=0), Explored(14_852, 43_856, 622)),
    ((ONE, ONE, ONE), Budget(crashes=1), Explored(8_284, 26_400, 173)),
    ((ONE, ONE, ONE), Budget(losses=1), Explored(13_350, 47_208, 11)),
    ((ONE, ONE, ONE), Budget(naps=1), Explored(28_390, 96_272, 10)),
    ((READER, READER, ONE), Budget(crashes=1), Explored(4_279, 13_018, 160)),
    ((READER_ON_TRIAL, READER, ONE), Budget(renewals=1), Explored(3_827, 12_607, 10)),
    ((READER, READER, ONE), Budget(losses=1), Explored(7_043, 23_660, 11)),
    ((READER, ONE, ONE), Budget(crashes=1), Explored(6_706, 21_126, 165)),
    ((OWNER, OWNER, ONE), Budget(crashes=1), Explored(3_727, 11_420, 151)),
    ((OWNER, READER, ONE), Budget(crashes=1), Explored(5_378, 16_705, 157)),
]


@pytest.mark.parametrize(("kinds", "budget", "expected"), WORLDS, ids=map(str, range(len(WORLDS))))
def test_every_interleaving(kinds, budget, expected):
    explored = explore(kinds, budget)
    print(explored)
    assert explored == expected
