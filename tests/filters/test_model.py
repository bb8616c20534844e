"""Any client, any policy, anything that empties the filter meanwhile: no answer is wrong."""

from __future__ import annotations

import time

import pytest
from filter_model import LOST, NEW, NOT_THERE, SEEN, THERE, run_rounds


def test_no_answer_is_wrong(valkey, seed):
    done = run_rounds(valkey, seed, answers=100_000)
    print(done)
    assert done.resets > 10
    assert min(done.kinds[what] for what in (NEW, SEEN, THERE, NOT_THERE)) > 100
    assert done.kinds[LOST]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_answer_of_a_million_is_wrong(valkey, seed, request):
    start = time.monotonic()
    most = request.config.getoption("--model-answers")
    done = run_rounds(valkey, seed, answers=most)
    print(done, f"{time.monotonic() - start:.0f} s")
