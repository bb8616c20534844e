"""A warm call goes through few files of the library, so that it can be read along."""

from __future__ import annotations

import crossing
import pytest

LIMITS = {
    "add": 7,
    "Lock.acquire": 8,
    "Lock.release": 8,
    "add, strategy lock": 14,
    "ten gathered adds": 12,
}


@pytest.mark.parametrize("call", crossing.CALLS)
def test_a_warm_call_crosses_few_files(valkey, call):
    files = crossing.CALLS[call](valkey).files
    assert len(files) > 2, "nothing was seen"
    assert len(files) <= LIMITS[call], sorted(files)
