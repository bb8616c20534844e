"""Walks by chance over all features of filters at once; see feature_walk."""

from __future__ import annotations

from collections import Counter

import pytest
from feature_walk import KINDS, Walk

FEW, MANY, STEPS = 2, 400, 100
LONG = pytest.param(MANY, marks=pytest.mark.long)


@pytest.mark.parametrize("walks", [FEW, LONG])
@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_is_that_of_the_model(stopped, tmp_path, kind, walks, seed):
    what = Counter()
    for number in range(walks):
        one = Walk(stopped(), kind, f"{seed}/{number}", tmp_path)
        try:
            one.run(STEPS)
        except BaseException as error:
            error.add_note(str(one))
            raise
        what += one.what
    print(what)
    assert what["lose_reply"]
    assert what["discarded"] or kind == "plain"
