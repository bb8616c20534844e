"""Two clients add one item to a filter with a window while it turns: every order of their commands.

The number of worlds is asserted, so that a change of the protocol does not make the search empty.
"""

from __future__ import annotations

import pytest
from window_explorer import Budget, Setting, explore

OLD = -20
"""An epoch that was over long ago."""

WORLDS = [
    (Setting((0, 0)), Budget(ticks=1)),
    (Setting((0, 0), wiped=0, dirty=True), Budget(ticks=1)),
    (Setting((0, 0), parts=2), Budget(ticks=1, crashes=1)),
    (Setting((0, 0), refresh=True), Budget(ticks=1)),
    (Setting((-1, 0), refresh=True), Budget(ticks=1)),
    (Setting((-5, -3), refresh=True, turned_to=-2), Budget(ticks=1)),
    (Setting((0, 0), there_since=-6), Budget(ticks=1)),
    (Setting((0, 0), refresh=True, there_since=-6), Budget(ticks=1)),
    (Setting((0, 0)), Budget(ticks=1, losses=1)),
    (Setting((0, 0), refresh=True), Budget(ticks=1, losses=1, crashes=1)),
    (Setting((None, None), turned_to=None), Budget(ticks=1)),
    (Setting((OLD, OLD), turned_to=OLD, there_since=OLD, refresh=True), Budget(ticks=1)),
    (Setting((0, 0)), Budget(jumps=1)),
    (Setting((0, 0), refresh=True), Budget(jumps=1)),
    (Setting((0,)), Budget(jumps=1, ticks=1, losses=1)),
    (Setting((0, 0), timed=True), Budget(ticks=1, losses=1)),
    (Setting((0, 0), timed=True, refresh=True), Budget(ticks=1, losses=1, crashes=1)),
    (Setting((0, 0), timed=True, there_since=-6), Budget(ticks=1)),
    (Setting((0, 0), timed=True), Budget(jumps=1)),
    (Setting((0, 0), timed=True, refresh=True), Budget(jumps=1)),
    (Setting((0, 0), timed=True), Budget(sets=1)),
    (Setting((0, 0), timed=True, refresh=True), Budget(sets=1, ticks=1)),
]
COUNTS = (
    *(1849, 1849, 6909, 810, 1638, 10392, 868, 810, 15137, 10338, 12034, 7283, 2401, 786, 1507),
    *(8352, 3546, 253, 1278, 254, 53, 8990),
)


@pytest.mark.parametrize("number", range(len(WORLDS)))
def test_every_interleaving(number):
    setting, budget = WORLDS[number]
    count, ends = explore(setting, budget)
    print(count, ends)
    assert count == COUNTS[number]
    if not budget.losses and not budget.crashes:
        assert any("new" in end for end in ends)
